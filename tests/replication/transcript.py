"""Transcripts: a script of inputs for a `World`, and the dialogue that follows, as text (as etcd/raft's testdata).

A file of `transcripts/` begins with a comment (`#`) that says what it shows. Then come commands, each a line that
begins with `> `, and after each command the lines that it recorded:

    <ms since the command> <node>: <event or action>

Heartbeats and their echoes, ticks, flushes and promises to self are left out: they would drown the rest. Commands:

    cluster n1 n2 n3        the voters; nothing runs yet
    start [n1 ...]          these nodes, or all
    nominate n1             the control plane names this node, and no other
    run 300                 move time by so many milliseconds
    write n1 VALUE [TIMES]  a client's write to a node
    slow n1                 hold back the flushes of a node; `fast n1` releases them
    fail n1                 the machine of a node applies nothing more
    isolate n1              cut all links of a node; `heal` restores all
    crash n1                the node loses power, and what it had not synced
    wipe n1                 the node that is down gets another, empty disk
    transfer n1 n2          an operator moves leadership
    promote n1 n2           an operator asks the leader n1 to make n2 a voter
    expire n1               the log of n1 keeps its last segment; snapshots stand where it begins, and at its end
    fetched n1              the snapshot that n1 was told to fetch has arrived
    quietly COMMAND         the command, without the lines that it records
    state                   one line per node: role, epoch, commit index, log
"""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from quire.replication.core import CoreOptions, Member, actions, events
from quire.replication.core.messages import (
    Campaign,
    Heartbeat,
    HeartbeatEcho,
    Last,
    Open,
    OpenAnswer,
    OpenVerb,
    PreVote,
    PreVoteAnswer,
    Promise,
    VoteAnswer,
    VoteRequest,
)
from tests.replication.installing import expire, snapshot_at
from tests.replication.world import Event, SimNode, World, values

FOLDER = Path(__file__).parent / "transcripts"
MILLISECOND = 1_000


def epochs_of(pairs: tuple[tuple[int, int], ...]) -> str:
    """Where each epoch begins."""
    return " ".join(f"{epoch}@{index}" for epoch, index in pairs)


def promise_of(promise: Promise) -> str:
    return f"epoch {promise.epoch} of {promise.candidate}"


def disk_of(member: Member) -> str:
    """The disk by which a member counts, as the world names it."""
    return member.disk_id.rstrip(bytes(1)).decode()


def last_of(last: Last) -> str:
    return f"log ends at {last.index} in epoch {last.epoch}"


def answered(granted: bool) -> str:
    return "yes" if granted else "no"


def message_of(message: object) -> str | None:
    """A message in words; None for what is left out."""
    match message:
        case Heartbeat() | HeartbeatEcho() | PreVote(0) | PreVoteAnswer(0):
            return None  # The last two: a leader asks an echo's sender for its clock.
        case PreVote(_, last, transferred_by):
            shown = f", asked to by the leader of epoch {transferred_by.epoch}" if transferred_by else ""
            return f"PreVote: {last_of(last)}{shown}"
        case PreVoteAnswer(_, granted, held_epoch, last):
            return f"PreVoteAnswer: {answered(granted)}, holds epoch {held_epoch}, {last_of(last)}"
        case Campaign(transferred_by):
            return "Campaign" + (f": from the leader of epoch {transferred_by.epoch}" if transferred_by else "")
        case VoteRequest(promise, last):
            return f"VoteRequest: {promise_of(promise)}, {last_of(last)}"
        case VoteAnswer(asked, granted, held_epoch):
            return f"VoteAnswer: {answered(granted)} to {promise_of(asked)}, holds epoch {held_epoch}"
        case _:
            raise AssertionError(message)


def open_of(message: Open) -> str:
    fetching = f", part of snapshot {message.fetching}" if message.fetching else ""
    return (
        f"Open: {promise_of(message.promise)}, epochs {epochs_of(message.epochs)}, to {message.highest_index}{fetching}"
    )


def answer_of(answer: OpenAnswer) -> str:
    match answer.verb:
        case OpenVerb.REFUSE:
            return f"OpenAnswer: refuse, {answer.reason}"
        case OpenVerb.INSTALL:
            return f"OpenAnswer: logs part at {answer.index}, install snapshot {answer.snapshot_index}"
        case verb:
            return f"OpenAnswer: {verb.name.lower()} at {answer.index}"


def action_of(action: actions.Action) -> str | None:
    """An action in words; None for what is left out."""
    match action:
        case actions.Send(node_id, message):
            said = message_of(message)
            return said and f"-> {node_id} {said}"
        case actions.StorePromise(promise):
            return f"stores its promise: {promise_of(promise)}"
        case actions.AppendRequests(epoch, _, requests):
            return f"appends {len(requests)} write{'s' if len(requests) > 1 else ''} in epoch {epoch}"
        case actions.AppendSystem(epoch, _, value):
            return f"appends {value['type']} in epoch {epoch}"
        case actions.AppendFrames():
            return "appends the leader's frames"
        case actions.Truncate(_, index):
            return f"truncates its log to {index}"
        case actions.Install(_, snapshot):
            return f"installs snapshot {snapshot.index}"
        case actions.FetchSnapshot(_, leader_id, index):
            return f"fetches snapshot {index} from {leader_id}"
        case actions.Apply(to_index):
            return f"applies to {to_index}"
        case _:
            return stream_action_of(action) or report_of(action)


def stream_action_of(action: actions.Action) -> str | None:
    """What is said on a stream, in words."""
    match action:
        case actions.SendOpen(_, opening):
            return open_of(opening)
        case actions.AnswerOpen(_, answer):
            return answer_of(answer)
        case actions.Ship(_, from_index, max_bytes, commit_index):
            return f"ships {'frames' if max_bytes else 'no frames'} from {from_index}, commit {commit_index}"
        case actions.SendAck(_, durable_index):
            return f"Ack: {durable_index}"
        case actions.CloseStream(_, reason):
            return f"closes a stream: {reason}"
        case _:
            return None


def report_of(action: actions.Action) -> str | None:
    """What the node above hears, in words."""
    match action:
        case actions.RoleChanged(role, epoch, leader_id, serving, reason):
            what = f"{role}, epoch {epoch}, leader {leader_id or 'unknown'}{', serving' if serving else ''}"
            return f"is now {what}{f' ({reason})' if reason else ''}"
        case actions.MembersChanged(members):
            return f"counts as voters: {', '.join(disk_of(member) for member in members.voters())}"
        case actions.ChangeEnded(_, outcome):
            stated = ", ".join(f"{field.name} {getattr(outcome, field.name)}" for field in fields(outcome))
            return f"change ended: {type(outcome).__name__}{f' ({stated})' if stated else ''}"
        case actions.TransferEnded(reason):
            return f"transfer ended: {reason}"
        case actions.RejectRequest(_, reason):
            return f"rejects a write: {reason}"
        case actions.Alarm(text):
            return f"raises an alarm: {text}"
        case actions.Halt(reason):
            return f"halts: {reason}"
        case actions.Flush() | actions.DialStream():
            return None
        case _:
            raise AssertionError(action)


class Transcript:
    """Runs the commands of one script and records what follows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._world: World | None = None
        self._began = 0

    @property
    def world(self) -> World:
        assert self._world is not None, "a script begins with: cluster n1 ..."
        return self._world

    def run(self, command: str) -> list[str]:
        """Run one command; return the lines that it recorded."""
        name, *words = command.split()
        if name == "quietly":
            self.run(" ".join(words))
            return []
        if name == "cluster":
            self._world = World(*words, options=CoreOptions())
            self._world.watch = self._record
            return []
        self.lines, self._began = [], self.world.now
        handler: Callable[..., None] = getattr(self, f"_do_{name}")
        handler(*words)
        return self.lines

    def _record(self, node: SimNode, event: Event | events.AppendResult, taken: list[actions.Action]) -> None:
        at = (self.world.now - self._began) / MILLISECOND
        if isinstance(event, events.TransferRequested):
            self.lines.append(f"{at:7.1f} {node.node_id}: an operator asks for a transfer to {event.target}")
        for action in taken:
            text = action_of(action)
            if text is not None:
                self.lines.append(f"{at:7.1f} {node.node_id}: {text}")

    def _do_start(self, *node_ids: str) -> None:
        self.world.start(*node_ids)

    def _do_nominate(self, node_id: str) -> None:
        for node in self.world.nodes.values():
            node.nominated = node.node_id == node_id
            node.step(events.Nominated(node.nominated))

    def _do_run(self, milliseconds: str) -> None:
        self.world.run_for(int(milliseconds) / 1_000)

    def _do_write(self, node_id: str, value: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self.world[node_id].write(value)
            if times != "1":
                self.world.run_for(0.05)

    def _do_slow(self, node_id: str) -> None:
        self.world[node_id].hold_flush = True

    def _do_fast(self, node_id: str) -> None:
        self.world[node_id].release()

    def _do_fail(self, node_id: str) -> None:
        self.world[node_id].machine_failed = True

    def _do_isolate(self, node_id: str) -> None:
        self.world.isolate(node_id)

    def _do_heal(self) -> None:
        self.world.heal()

    def _do_crash(self, node_id: str) -> None:
        self.world[node_id].crash()

    def _do_wipe(self, node_id: str) -> None:
        self.world[node_id].wipe()

    def _do_transfer(self, node_id: str, target: str) -> None:
        self.world[node_id].step(events.TransferRequested(target))

    def _do_promote(self, node_id: str, target: str) -> None:
        self.world[node_id].promote(target)

    def _do_expire(self, node_id: str) -> None:
        expire(self.world[node_id])

    def _do_fetched(self, node_id: str) -> None:
        node = self.world[node_id]
        fetch = node.fetches[-1]
        node.step(events.SnapshotFetched(fetch.stream_id, snapshot_at(self.world[fetch.leader_id], fetch.index)))

    def _do_state(self) -> None:
        for node in self.world.nodes.values():
            if node.core is None:
                self.lines.append(f"        {node.node_id}: down")
                continue
            status = node.core.status()
            halted = f", halted: {node.halted}" if node.halted else ""
            held = [value for value in values(node) if len(str(value)) < 20]
            self.lines.append(
                f"        {node.node_id}: {status.role}, epoch {status.promise.epoch}, commit {status.commit_index}, "
                f"log [{node.log.bounds.lowest_index}, {node.log.tail.index}) {held}{halted}"
            )


def rerun(text: str) -> str:
    """The script with what its commands record now."""
    transcript = Transcript()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += ["", line] if lines[-1:] != [""] else [line]
            lines += transcript.run(line.removeprefix("> "))
        elif line.startswith("#"):
            lines.append(line)
    return "\n".join(lines).strip() + "\n"

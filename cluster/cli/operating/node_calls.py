"""What `quire snapshot`, `expire` and `admin accept-code` have each node do: a line for each, once it has done it.

The line says what the node did, or why it did nothing. On a terminal stderr shows whom the command still waits for.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from ...client import Client, ClientError, SegmentsExpired, Status, Unavailable
from ...client.documents import Expiry
from ...terminal import escaped
from ..connection import ClusterOptions, exit_of
from ..output import Exit, complain, interruptible, say, to_json

if TYPE_CHECKING:
    from rich.status import Status as RichStatus

CODE_CHARACTERS = 12
"""How much of a fingerprint is shown, as in the alarms."""
SHA256_CHARACTERS = 8
"""As in the table of `quire status`."""
WAITS_SHOWN_AFTER_S = 1.0
OF_SNAPSHOTS = "snapshots"
"""`what` of the hold that another snapshot ends."""
UNITS = ("bytes", "kB", "MB", "GB", "TB")
KILO, TENTHS_BELOW = 1000, 10


class Done(NamedTuple):
    """What a node answered: a document for JSON, and a sentence without its subject."""

    document: Mapping[str, object]
    sentence: str


class NodeAnswer(NamedTuple):
    """What a node at an address did, or why it did not."""

    address: str
    done: Done | None
    failure: str = ""

    def document(self) -> dict[str, object]:
        """For JSON."""
        document = None if self.done is None else self.done.document
        return {"address": self.address, "document": document, "failure": self.failure}


NodeCall = Callable[[Client, str], Awaitable[Done]]


def call_each(cluster: ClusterOptions, node: str | None, call: NodeCall, *, as_json: bool, timeout_s: float) -> Exit:
    """Call each member, or one; print a line for each, or one document; return the exit code."""
    try:
        with interruptible():
            answers = asyncio.run(_call_each(cluster.connect(timeout_s), node, call, as_json=as_json))
    except ClientError as error:
        return exit_of(error)
    except KeyboardInterrupt:
        complain("interrupted; a node that was asked continues: see `quire status`")
        return Exit.INTERRUPTED
    if as_json:
        say(to_json({node_id: answer.document() for node_id, answer in answers.items()}))
        for node_id, answer in answers.items():
            if answer.failure:
                complain(f"{node_id}: {answer.failure}")
    return Exit.FAILED if any(answer.failure for answer in answers.values()) else Exit.DONE


async def _call_each(unopened: Client, node: str | None, call: NodeCall, *, as_json: bool) -> dict[str, NodeAnswer]:
    async with unopened as client:
        status = await client.status()
        addresses = {member["node_id"]: member["address"] for member in status.get("members", ())}
        if not addresses:
            raise ClientError(f"{status['node_id']} has not joined a cluster yet; see `quire status`")
        if node is not None and node not in addresses:
            raise ClientError(f"{node} is not one of the members ({', '.join(addresses)})")
        asked = {node_id: address for node_id, address in addresses.items() if node in (None, node_id)}
        lines = _Lines(asked)

        async def call_one(node_id: str, address: str) -> NodeAnswer:
            answer = await _answer_of(client, address, call)
            if not as_json:
                lines.show(node_id, answer)
            return answer

        waiting = asyncio.create_task(_show_waiting(lines))
        try:
            answers = await asyncio.gather(*(call_one(node_id, address) for node_id, address in asked.items()))
        finally:
            waiting.cancel()
            lines.end()
        return dict(zip(asked, answers, strict=True))


async def _answer_of(client: Client, address: str, call: NodeCall) -> NodeAnswer:
    try:
        return NodeAnswer(address, await call(client, address))
    except Unavailable as error:
        return NodeAnswer(address, None, error.reason)
    except ClientError as error:
        return NodeAnswer(address, None, str(error))


class _Lines:
    """The lines of the nodes, in the order of the members; on a terminal, each as soon as its node has answered.

    There, a line on stderr says whom the command waits for, once it has waited for a while.
    """

    def __init__(self, nodes: Collection[str]) -> None:
        self._missing = list(nodes)
        self._answers: dict[str, NodeAnswer] = {}
        self._waits: RichStatus | None = None

    def show(self, node_id: str, answer: NodeAnswer) -> None:
        """Print the line of a node, now or after those before it."""
        self._answers[node_id] = answer
        due = [node_id] if sys.stdout.isatty() else list(takewhile(self._answers.__contains__, self._missing))
        if self._waits is not None:
            self._waits.stop()
        for each in due:
            self._missing.remove(each)
            _print(each, self._answers[each])
        if self._waits is not None and self._missing:
            self.show_waiting()

    def show_waiting(self) -> None:
        """Show whom the command still waits for."""
        from rich.text import Text  # Only a terminal needs rich, and only if something takes long.

        from ..console import EscapingConsole

        text = Text(escaped(f"waiting for {', '.join(each for each in self._missing if each not in self._answers)}"))
        if self._waits is None:
            self._waits = EscapingConsole(stderr=True).status(text)
        self._waits.update(text)
        self._waits.start()

    def end(self) -> None:
        """Show nothing any more."""
        if self._waits is not None:
            self._waits.stop()


async def _show_waiting(lines: _Lines) -> None:
    if sys.stderr.isatty():
        await asyncio.sleep(WAITS_SHOWN_AFTER_S)
        lines.show_waiting()


def _print(node_id: str, answer: NodeAnswer) -> None:
    if answer.done is None:
        complain(f"{node_id}: {answer.failure}")
    else:
        say(f"{node_id} {answer.done.sentence}")


# What a node does


async def take_snapshot(client: Client, address: str) -> Done:
    """Have a node take a snapshot."""
    known = {kept["index"] for kept in (await client.status(address))["snapshots"]["kept"]}
    began = time.monotonic()
    taken = await client.take_snapshot(address)
    what = f"{size_of(taken['bytes'])}, sha256 {taken['sha256'][:SHA256_CHARACTERS]}"
    if taken["index"] in known:
        sentence = f"has a snapshot at {taken['index']:,} already, of all that it has applied ({what})"
    else:
        sentence = f"took a snapshot at {taken['index']:,} ({what}, {time.monotonic() - began:.1f} s)"
    return Done(taken, sentence)


def expiring(*, dry_run: bool) -> NodeCall:
    """Have a node delete what has expired from its log; with `dry_run`, tell what it would delete."""

    async def expire(client: Client, address: str) -> Done:
        lowest_index = (await client.status(address))["lowest_index"]
        gone = await client.expire(address, dry_run=dry_run)
        status = await client.status(address)
        expiry = status["expiry"]
        held = {"held_bytes": expiry["held"]["bytes"], "held_by": expiry["holds"][0]["why"]} if dry_run else {}
        return Done({**gone, **held}, expired_sentence(gone, lowest_index, status, dry_run=dry_run))

    return expire


def expired_sentence(gone: SegmentsExpired, lowest_index: int, status: Status, *, dry_run: bool) -> str:
    """What expired from the log of a node that began at `lowest_index`, and what keeps the rest."""
    verb, rest = "would remove" if dry_run else "removed", _held(status["expiry"])
    if not gone["segments"]:
        return f"{verb} nothing: {rest or _why_nothing(status)}"
    what = f"{_count(gone['segments'])} [{lowest_index:,}, {gone['to_index']:,}), {size_of(gone['bytes'])}"
    return f"{verb} {what}" + (f"; {rest}" if rest else "")


def _held(expiry: Expiry) -> str:
    """How much is above the limits and stays, and why; empty if nothing is."""
    held = expiry["held"]
    if not held["segments"]:
        return ""
    first = expiry["holds"][0]
    advice = "; `quire snapshot` takes one now" if first["what"] == OF_SNAPSHOTS else ""
    verb = "is" if held["segments"] == 1 else "are"
    return f"{_count(held['segments'])}, {size_of(held['bytes'])}, {verb} held: {first['why']}{advice}"


def _why_nothing(status: Status) -> str:
    """Why nothing is above the limits."""
    expiry, reasons = status["expiry"], list[str]()
    if limit := expiry["retention_bytes"]:
        sizes = f"{size_of(status['log_bytes'])} of {size_of(limit)}"
        is_above = status["log_bytes"] > limit
        why = "all is in the segment that is written" if is_above else "the log is not larger than --retention-bytes"
        reasons.append(f"{why} ({sizes})")
    if limit := expiry["retention_ms"]:
        reasons.append(f"no whole segment is older than --retention-ms ({limit / 1000:,.0f} s)")
    return " and ".join(reasons) or "no limit is set; see --retention-bytes and --retention-ms of `quire serve`"


def _count(segments: int) -> str:
    return f"{segments:,} segment{'' if segments == 1 else 's'}"


async def accept_code(client: Client, address: str) -> Done:
    """Have a node accept the code that the members run."""
    row = await client.code.accept(address)
    accepted = ", ".join(code[:CODE_CHARACTERS] for code in row["accepted_code"])
    return Done(row, f"runs code {(row['code'] or 'unknown')[:CODE_CHARACTERS]}; it accepts {accepted}")


def size_of(count: int) -> str:
    """A number of bytes for people: `12 kB`."""
    if count == 1:
        return "1 byte"
    value, unit = float(count), 0
    while round(value) >= KILO and unit + 1 < len(UNITS):
        value, unit = value / KILO, unit + 1
    return f"{value:.1f} {UNITS[unit]}" if unit and round(value, 1) < TENTHS_BELOW else f"{value:,.0f} {UNITS[unit]}"

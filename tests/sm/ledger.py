"""A machine that notes all it executed, and an applier around it with a log of frames to feed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quire.log import Frame, Run, pack, unpack
from quire.sm import Applied, Applier, Context, Refused, Sessions
from tests.sm.frames import Frames


class Ledger:
    """Answers a command with [how many came before it, its index]; refuses "no"; raises on "boom".

    So an answer given twice is equal only if it was recorded: executing again counts again.
    """

    name = "ledger"
    version = 1

    def __init__(self, initial: Any = None) -> None:
        self.executed: list[Any] = []
        self.batches: list[int] = []

    def check(self, command: Any) -> None:
        return

    def apply(self, command: Any, context: Context) -> Any:
        if "boom" in (command if isinstance(command, list) else [command]):
            raise KeyError(command)
        self.executed.append(command)
        if "no" in (command if isinstance(command, list) else [command]):
            raise Refused("NO", f"{len(self.executed) - 1}, {context.index}")
        return [len(self.executed) - 1, context.index]

    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        self.batches.append(len(commands))
        replies: list[Any] = []
        for command, context in zip(commands, contexts, strict=True):
            try:
                replies.append(self.apply(command, context))
            except Refused as refusal:
                replies.append(refusal)
        return replies

    def query(self, request: Any) -> Any:
        return self.executed

    def snapshot(self) -> Iterator[bytes]:
        return iter((pack(self.executed),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        executed: Any = unpack(b"".join(chunks))
        self.executed = executed


class Desk:
    """An applier with a ledger. Each method appends a frame to the log and applies it."""

    def __init__(self, **limits: int) -> None:
        self.limits = limits
        self.log: list[Frame] = []
        self.frames = Frames()
        self.ledger = Ledger()
        self.applier = Applier(self.ledger, sessions=Sessions(**limits))
        self.apply(self.frames.system({"type": "epoch_start", "node_id": "n1"}))  # so that no session's id is 0

    def apply(self, frame: Frame) -> Applied:
        self.log.append(frame)
        return self.applier.apply(frame)

    def open(self, name: str | None = None, owner: str | None = None) -> int:
        """The new session's id."""
        [status] = self.try_open(name, owner).results
        return int(status["session"])

    def try_open(self, name: str | None = None, owner: str | None = None) -> Applied:
        fields = {"type": "open_session", "name": name} | ({} if owner is None else {"owner": owner})
        return self.apply(self.frames.system(fields))

    def pass_time(self, seconds: float) -> None:
        """The next frames are stamped so much later."""
        self.frames.timestamp += round(seconds * 1_000_000)

    def use_features(self, *names: str) -> None:
        """From here on the log uses these."""
        self.apply(self.frames.system({"type": "features", "names": list(names)}))

    def close_all(self, *sessions: int) -> Applied:
        return self.apply(self.frames.system({"type": "close_sessions", "sessions": list(sessions)}))

    def close(self, session: int) -> Applied:
        return self.apply(self.frames.system({"type": "close_session", "session": session}))

    def send(self, session: int, sequence: int, commands: Sequence[Any]) -> list[Any]:
        """One frame of kind records: for each command its result, or [code, text]."""
        return replies(self.apply(self.frames.records(commands, session, sequence)))

    def send_runs(self, *runs: tuple[int, int, Sequence[Any]]) -> list[Any]:
        """One frame of kind runs, each (session, sequence, commands)."""
        headers = [Run(session, sequence, len(commands)) for session, sequence, commands in runs]
        return replies(self.apply(self.frames.runs(headers, [command for run in runs for command in run[2]])))

    def again(self) -> Applier:
        """Another replica: the same frames, from nothing."""
        applier = Applier(Ledger(), sessions=Sessions(**self.limits))
        for frame in self.log:
            applier.apply(frame)
        return applier

    def restart(self) -> None:
        """Continue from a snapshot of the current state, as a restarted replica does."""
        content, boundary = list(self.applier.content()), self.applier.boundary
        self.ledger = Ledger()
        self.applier = Applier.restored(content, boundary, self.ledger, Sessions(**self.limits), "a snapshot")

    def content(self) -> bytes:
        """What a snapshot holds now."""
        return b"".join(self.applier.content())


def replies(applied: Applied) -> list[Any]:
    """For each record its result, or [code, text]."""
    given = list(applied.results)
    for position, code, text in applied.refused:
        if given[position] is not None:
            raise ValueError(f"position {position} has a result and a refusal")
        given[position] = [code, text]
    return given


def codes(given: list[Any]) -> list[Any]:
    """The replies, with a refusal's code alone."""
    return [reply[0] if isinstance(reply, list) and isinstance(reply[0], str) else reply for reply in given]

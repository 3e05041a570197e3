"""The state machine that the simulated clients use, and a model of its answers.

`Tally` runs in the shipped applier, with the shipped sessions. `Model` reads the same committed frames and computes
each answer independently, with the plainest code.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

from quire.log import Frame, Kind, Value, decode_blob, decode_runs, decode_system, decode_values, pack, unpack
from quire.sm import MAX_SESSIONS, Applied, Context, Refused

from .consuming.model import CursorModel

REFUSED_EVERY = 23
CODE, OTHER_CODE = b"c" * 32, b"o" * 32
"""The fingerprint of the code of all nodes, and of a node with other code, whose results differ."""


def next_chain(chain: int, command: object) -> int:
    """The chain after one more command."""
    return crc32(pack(command), chain)


def is_refused(command: object) -> bool:
    """Whether `apply` refuses it."""
    return isinstance(command, int) and command % REFUSED_EVERY == 0


class Tally:
    """Answers a command with [commands executed, a hash of all of them], so that a second execution is detected."""

    name = "tally"
    version = 1
    takes_blobs = True

    def __init__(self, initial: object = None) -> None:
        self.count, self.chain = 0, 0
        self.is_broken = False
        self.is_other = False

    def check(self, command: object) -> None:
        return

    def apply(self, command: object, context: Context) -> Value:
        if self.is_broken:
            raise MemoryError("this machine has no memory left")
        if is_refused(command):
            raise Refused("NO", f"{command}")
        self.count += 1
        self.chain = next_chain(self.chain, command)
        return [self.count, self.chain, "other code"] if self.is_other else [self.count, self.chain]

    def query(self, request: object) -> Value:
        return [self.count, self.chain]

    def snapshot(self) -> Iterator[bytes]:
        return iter((pack([self.count, self.chain]),))

    def restore(self, chunks: Iterable[bytes]) -> None:
        match unpack(b"".join(chunks)):
            case [int(count), int(chain)]:
                self.count, self.chain = count, chain
            case other:
                raise ValueError(f"{other!r} is not a tally")


class Reply(NamedTuple):
    """The answer to a record: a result, or the code of a refusal."""

    result: object
    code: str | None = None


class _Session:
    def __init__(self) -> None:
        self.replies: list[tuple[object, Reply]] = []


class ModelBroken(Exception):
    """The log holds a command twice, or one that was reported as not appended."""


class Model:
    """The answers to the committed frames. At `max_sessions` the unnamed session idle longest is evicted."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self.max_sessions = max_sessions
        self._tally = Tally()
        self._sessions: dict[int, _Session] = {}  # The one idle longest comes first.
        self._names: dict[str, int] = {}
        self._fenced: list[int] = []
        self._history_index = 0
        self.replies: list[list[Reply]] = []
        self.at: dict[int, tuple[object, Reply]] = {}
        self.executed_at: dict[object, int] = {}
        self.states: dict[int, list[int]] = {0: [0, 0]}
        self.cursors = CursorModel()
        self.never: set[object] = set()
        """Commands that a leader reported as not appended."""

    def apply(self, frame: Frame) -> list[Reply]:
        """The replies to the next committed frame's records.

        Raises:
            ModelBroken: a command executes twice, or was reported as not appended.
        """
        header = frame.header
        if header.kind == Kind.SYSTEM:
            replies = self._system(header.index, decode_system(frame.payload))
        else:
            replies = self._commands(frame)
        self.replies.append(replies)
        self.states[header.next_index] = [self._tally.count, self._tally.chain]
        self.cursors.ends_at(header.next_index)
        return replies

    def broken_by(self, frame: Frame, applied: Applied) -> str:
        """The rule of the cursors that a node's results of the next frame break, in words; "" if they break none."""
        if frame.header.kind != Kind.SYSTEM or not applied.results:
            return ""
        fields = decode_system(frame.payload)
        return self.cursors.broken_by(fields, applied.results[0]) if fields["type"] == "cursors" else ""

    def _system(self, index: int, fields: Mapping[str, object]) -> list[Reply]:
        if fields["type"] == "history":
            held = set(self._names.values())
            self._sessions = {-abs(old): session for old, session in self._sessions.items() if old in held}
            self._names = {name: -abs(old) for name, old in self._names.items()}
            self._fenced.clear()
            self._history_index = index
            self.cursors.end_history()
        if fields["type"] == "cursors":
            results = self.cursors.apply(index, fields)
            self.at[index] = (fields, Reply(results))
            return [Reply(results)]
        if fields["type"] != "open_session":
            return []
        found = fields.get("name")
        name = found if isinstance(found, str) else None
        old = self._names.get(name) if name else None
        if old is None and not self._has_room():
            reply = Reply(None, "SESSIONS_FULL")
            self.at[index] = (("open", name), reply)
            return [reply]
        if old is None:
            session = _Session()
        else:
            session = self._sessions.pop(old)
            if old > 0:
                self._fenced = [*self._fenced, old][-self.max_sessions :]
        self._sessions[index] = session
        if name:
            self._names[name] = index
        reply = Reply({"session": index, "sequence": len(session.replies)})
        self.at[index] = (("open", name), reply)
        return [reply]

    def _has_room(self) -> bool:
        """Whether one more session may be opened; evicts an idle one if necessary."""
        if len(self._sessions) < self.max_sessions:
            return True
        named = set(self._names.values())
        for session in self._sessions:
            if session not in named:
                del self._sessions[session]
                return True
        return False

    def _commands(self, frame: Frame) -> list[Reply]:
        header, payload = frame
        runs = [(header.session, header.sequence, header.count)]
        match header.kind:
            case Kind.RECORDS:
                commands = decode_values(payload, header.count)
            case Kind.RUNS:
                found, commands = decode_runs(payload, header.count)
                runs = [(session, sequence, count) for session, sequence, count in found]
            case _:
                commands = [decode_blob(payload)[1]]
        replies: list[Reply] = []
        for session, sequence, count in runs:
            for offset in range(count):
                position = len(replies)
                reply = self._command(header.index + position, session, sequence + offset, commands[position])
                self.at[header.index + position] = (commands[position], reply)
                replies.append(reply)
        return replies

    def _command(self, index: int, session: int, sequence: int, command: object) -> Reply:
        if command in self.never:
            raise ModelBroken(f"{command} is at {index}, but a leader reported that it was not appended")
        if not session:
            return self._execute(index, command)
        known = self._sessions.get(session)
        if known is None and session < self._history_index:
            return Reply(None, "HISTORY_CHANGED")
        if known is None:
            return Reply(None, "SESSION_FENCED" if session in self._fenced else "SESSION_EXPIRED")
        self._sessions[session] = self._sessions.pop(session)
        if sequence > len(known.replies) + 1:
            return Reply(None, "SEQUENCE_GAP")
        if sequence <= len(known.replies):
            recorded, reply = known.replies[sequence - 1]
            return reply if recorded == command else Reply(None, "SEQUENCE_REUSED")
        reply = self._execute(index, command)
        known.replies.append((command, reply))
        return reply

    def _execute(self, index: int, command: object) -> Reply:
        if command in self.executed_at:
            raise ModelBroken(f"{command} executes at {self.executed_at[command]} and again at {index}")
        self.executed_at[command] = index
        if is_refused(command):
            return Reply(None, "NO")
        return Reply(self._tally.apply(command, Context(index, 0, 0)))

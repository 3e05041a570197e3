"""The applier: committed frames in, results and the digest out. After a failure it never continues.

A frame's records execute in record order, except those that a session answers (sessions/retries.py): all at once, or in
steps of as many commands as the caller chooses (`Execution`).

The digest is a hash chain over the applied frames and their replies, equal on equal replicas:

    digest' = blake2b-16( digest 16 | index u64 | crc32c u32 | msgpack([results, refused]) )      little-endian

`index` is the index of the frame's first record. `crc32c` is the frame header's own field, which covers the payload
and, through `prev_crc32c`, all earlier frames. The digest starts as 16 zero bytes. Of the system frames,
only those of `cursors` change it, since their rows have results (cursors.py).
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from quire.log import (
    FEATURES,
    SESSION_TTL,
    Frame,
    FrameHeader,
    Kind,
    PayloadInvalid,
    Tail,
    decode_blob,
    decode_runs,
    decode_system,
    decode_values,
    pack,
)

from .boundary import DIGEST_BYTES, HISTORY_BYTES, LOG_START, MAX_EPOCHS, Boundary
from .cursors import Cursors
from .errors import (
    FIX_MACHINE,
    REPORT,
    RESTART,
    ApplyFailed,
    CommandFailed,
    FrameOutOfOrder,
    StateUnproven,
    defined_at,
    in_one_line,
    raised_at,
    reason_of,
    short_command,
)
from .machine import Context, Contexts, RefusalRow, Refused, StateMachine
from .sessions.retries import Verdicts
from .sessions.table import Sessions
from .snapshots.content import content_of, restore_content

SHORT_REPLY = 1024
"""The reply to more records than this is packed in a step of its own."""
SHORT_REPLY_BYTES = 1 << 20
"""The digest of a longer reply is computed in a step of its own: 10 MiB take 10 ms to pack and 15 ms to hash."""

ApplyBatch = Callable[[Sequence[object], Sequence[Context]], list[object]]
Runs = Sequence[tuple[int, int, int]]
UPGRADE = "upgrade this node; until then it replicates and votes, and applies nothing"

_CHAIN_PREFIX = Struct(f"<{DIGEST_BYTES}sQI")


class Applied(NamedTuple):
    """An applied frame: its range [index, next_index), and the result of each record.

    The result of a refused record is None, and `refused` holds its [position, code, text]. A system frame that opens or
    closes a session has the result {"session": id, "sequence": last answered one}, one of cursors a list with a result
    for each row; other system frames have none.
    """

    index: int  # type: ignore[assignment]  # Hides tuple.index, which is unused.
    next_index: int
    epoch: int
    results: list[Any]
    refused: list[RefusalRow]
    size: int = 0
    """Bytes of both as msgpack; 0 for a system frame."""
    answered: Sequence[int] = ()
    """The positions that their session answered, ascending: retries and refusals. The machine executed the rest."""


class _Reply(NamedTuple):
    """The results of a frame's commands, and the digest after them."""

    results: list[object]
    refused: list[RefusalRow]
    size: int
    digest: bytes
    answered: Sequence[int]


class Execution:
    """The execution of one frame: call `step` until it returns True, then `finish`.

    In between, the machine and the sessions are in the middle of the frame, and nothing may read them. `step` may run
    in another thread, one call at a time; the applier's attributes (applied_index, digest, ...) change in `finish`.
    """

    def __init__(self, applier: "Applier", frame: Frame) -> None:
        self.frame = frame
        self._applier = applier
        self._steps = applier.steps_of(frame)
        self._reply: _Reply | None = None
        self._began = False

    def step(self, most: int) -> bool:
        """Execute at most `most` commands (at least 1); return whether only `finish` is left.

        Raises:
            As `Applier.apply`.
        """
        try:
            if self._began:
                self._steps.send(most)
            else:
                self._began = True
                next(self._steps)
                self._steps.send(most)
        except StopIteration as end:
            self._reply = end.value
            return True
        except ApplyFailed as failure:
            self._applier.failure = failure
            raise
        except BaseException as error:  # KeyboardInterrupt, MemoryError: the state may have changed, so never retry.
            self._applier.failure = _failed(self.frame.header, f"interrupted ({reason_of(error)})", RESTART)
            raise
        return False

    def finish(self) -> Applied:
        """The frame is applied as a whole: advance applied_index and, if it has results, the digest.

        Raises:
            As `Applier.apply`.
        """
        return self._applier.finish(self.frame, self._reply)


class Applier:
    """Feeds frames to a machine, in order and each once; keeps sessions, cursors, applied_index, digest. One thread.

    After a failure (`failure` is set) the machine may have applied a part of a frame: applied_index and digest stay
    at the last whole frame, and the state is no longer served.
    """

    def __init__(
        self,
        machine: StateMachine,
        *,
        boundary: Boundary = LOG_START,
        sessions: Sessions | None = None,
        cursors: Cursors | None = None,
        supported: Collection[str] = FEATURES,
    ) -> None:
        """All are in the state at `boundary`: that of a restored snapshot (`restored`), or the log's start.

        `supported` are the features that this program knows.
        """
        self.machine = machine
        self.sessions = Sessions() if sessions is None else sessions
        self.cursors = Cursors() if cursors is None else cursors
        self.applied_index = boundary.tail.index
        self.digest = boundary.digest
        self._tail = boundary.tail
        self._epochs = list(boundary.epochs)
        self._members_index, self._members, self._removed = (
            boundary.members_index,
            boundary.members,
            boundary.removed,
        )
        self._history, self._history_index = boundary.history, boundary.history_index
        self.sessions.history_index = boundary.history_index
        self.features = frozenset(boundary.features)
        """The features in use at `applied_index`."""
        self._supported = supported
        if SESSION_TTL in self.features and self.sessions.expiring_since is None:
            self.sessions.expire_from(0)  # The snapshot has the times of use.
        self.failure: ApplyFailed | None = None
        self.unproven: StateUnproven | None = None
        """Set until it is known that the state is what another code, which took a snapshot, made of the same log."""
        self._is_inside = False  # Whether a frame has begun and not ended.
        if lacking := sorted(self.features - set(supported)):
            text = f"the snapshot uses the feature {lacking[0]!r:.40}, which this version does not know"
            self.failure = ApplyFailed(index=boundary.tail.index, text=text, do=UPGRADE)
        own: ApplyBatch | None = getattr(machine, "apply_batch", None)
        self._apply_batch: ApplyBatch = own or self._apply_one_by_one
        self._takes_blobs = bool(getattr(machine, "takes_blobs", False))

    @classmethod
    def restored(
        cls, pieces: Iterable[bytes], boundary: Boundary, machine: StateMachine, sessions: Sessions, name: str
    ) -> "Applier":
        """An applier at a snapshot's boundary, from its content, a new machine and an empty session table.

        `name` is the snapshot's, for messages. After any exception, discard the machine and the table.

        Raises:
            SnapshotDamaged, RestoreFailed: as `restore_content`.
        """
        cursors = Cursors()
        restore_content(pieces, machine, sessions, cursors, name)
        return cls(machine, boundary=boundary, sessions=sessions, cursors=cursors)

    def apply(self, frame: Frame) -> Applied:
        """Apply the next frame as a whole; advance applied_index and, if it has results, the digest.

        Raises:
            ApplyFailed: the machine raised something other than Refused, or the frame cannot be applied; every later
                call raises it again.
            MemoryError: this process ran out of memory outside of the machine; every later call raises ApplyFailed.
            FrameOutOfOrder: the frame does not start at applied_index; nothing was changed.
        """
        execution = self.begin(frame)
        while not execution.step(frame.header.count):
            pass
        return execution.finish()

    def begin(self, frame: Frame) -> Execution:
        """Begin to apply the next frame; nothing is changed yet. Finish it before calling anything else here.

        Raises:
            ApplyFailed, FrameOutOfOrder: as `apply`.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if frame.header.index != self.applied_index:
            raise FrameOutOfOrder(index=frame.header.index, applied_index=self.applied_index)
        if self._is_inside:
            raise RuntimeError(f"the frame at {self.applied_index} has begun already")
        self._is_inside = True
        return Execution(self, frame)

    def finish(self, frame: Frame, reply: _Reply | None) -> Applied:
        """For `Execution`: the commands of the frame have executed with this reply; None for a system frame."""
        header = frame.header
        answered: Sequence[int] = ()
        if reply is not None:
            results, refused, size, self.digest, answered = reply
        else:
            size = 0
            try:
                results, refused = self._apply_system(frame)
            except ApplyFailed as failure:
                self.failure = failure
                raise
            except BaseException as error:  # As in `Execution.step`.
                self.failure = _failed(header, f"interrupted ({reason_of(error)})", RESTART)
                raise
        self.applied_index = header.next_index
        if header.epoch != self._tail.epoch or not self._epochs:
            self._epochs.append((header.epoch, header.index))
            del self._epochs[:-MAX_EPOCHS]
        self._tail = Tail(header.next_index, header.epoch, header.timestamp, header.crc32c)
        self._is_inside = False
        if (unproven := self.unproven) is not None and unproven.index == header.next_index:
            self._compare(unproven)
        return Applied(header.index, header.next_index, header.epoch, results, refused, size, answered)

    def _compare(self, unproven: StateUnproven) -> None:
        """Compare the digest with that of the snapshot that the machine does not read. Raises ApplyFailed."""
        if self.digest != unproven.digest:
            text = f"applied from index {unproven.from_index}, the log does not give the digest of the snapshot there"
            self.failure = ApplyFailed(index=unproven.index, text=text, do=unproven.do)
            raise self.failure

    @property
    def refusal(self) -> ApplyFailed | None:
        """Why nothing that it holds may be answered: it has failed, or its state is unproven."""
        return self.failure or self.unproven

    @property
    def history(self) -> bytes:
        """The id in the last applied `history` record; empty in a cluster's first history."""
        return self._history

    @property
    def boundary(self) -> Boundary:
        """The boundary that the applier has reached: that of a snapshot taken now."""
        return Boundary(
            self._tail,
            self._members_index,
            self._members,
            tuple(self._epochs),
            self.digest,
            tuple(sorted(self.features)),
            self._removed,
            self._history,
            self._history_index,
        )

    def content(self) -> Iterator[bytes]:
        """The content of a snapshot taken now; read it before the next `apply`. Raises ApplyFailed: the `refusal`."""
        self._refuse_inside()
        return content_of(self.machine, self.sessions, self.cursors)

    def state(self) -> Any:
        """The machine's whole state, `query(None)`. Raises ApplyFailed: the `refusal`."""
        return self.query(None)

    def query(self, request: object) -> Any:
        """The machine's answer. Raises ApplyFailed: the `refusal`; and whatever the machine raises."""
        self._refuse_inside()
        return self.machine.query(request)

    def _refuse_inside(self) -> None:
        if (refusal := self.refusal) is not None:
            raise refusal.with_traceback(None)
        if self._is_inside:
            raise RuntimeError(f"the frame at {self.applied_index} is partly applied; wait until it is finished")

    def _apply_system(self, frame: Frame) -> tuple[list[object], list[RefusalRow]]:
        """Open or close sessions, set cursors, note members, features, history.

        Raises:
            ApplyFailed: the record cannot be read, or is of an unknown type.
        """
        try:
            fields: dict[str, Any] = decode_system(frame.payload)
            match fields["type"]:
                case "open_session":
                    name, owner = _text(fields, "name"), _text(fields, "owner")
                    status = self.sessions.open(frame.header.index, name, frame.header.timestamp, owner)
                case "close_session":
                    status = self.sessions.close(fields["session"])
                case "cursors":
                    results: list[object] = [self.cursors.apply(frame.header.index, fields)]
                    packed = pack([results, []])
                    self.digest = next_digest(self.digest, frame.header.index, frame.header.crc32c, packed)
                    return results, []
                case "close_sessions":
                    return [{"closed": self.sessions.close_all(fields["sessions"])}], []
                case "genesis" | "members":
                    self._note_members(frame.header.index, fields)
                    self._use(frame.header, fields.get("features", []))
                    return [], []
                case "history":
                    self._begin_history(frame.header.index, fields)
                    return [], []
                case "features":
                    self._use(frame.header, fields["names"])
                    return [], []
                case "epoch_start" | "cursor" | "digest":
                    return [], []
                case unknown:
                    text = f"it is a system record of type {unknown!r:.40}, which this version does not know"
                    raise _failed(frame.header, text, UPGRADE)
        except Refused as refusal:
            return [None], [[0, refusal.code, refusal.text]]
        except (MemoryError, ApplyFailed):
            raise  # This process lacks memory; the frame is not at fault. `apply` ends with it.
        except Exception as error:
            raise _failed(frame.header, f"the payload cannot be read ({reason_of(error)})", REPORT) from error
        return [{"session": status.session, "sequence": status.sequence}], []

    def _note_members(self, index: int, fields: Mapping[str, Any]) -> None:
        self._members_index = index
        self._members, self._removed = fields.get("members", []), fields.get("removed", [])

    def _begin_history(self, index: int, fields: Mapping[str, Any]) -> None:
        """From this index on the log is another history; no session continues in it. Raises ValueError."""
        history, (before, end), members = fields["history"], fields["from"], fields["members"]
        if any(type(each) is not bytes or len(each) != HISTORY_BYTES for each in (history, before)):
            raise ValueError(f"the id of a history has {HISTORY_BYTES} bytes")
        # A record of the features that it needs may stand between the end and this one.
        if type(end) is not int or not 0 <= end <= index or history == before or self._history not in (b"", before):
            raise ValueError("it does not continue the history that ends there")
        if type(fields["name"]) is not str or type(members) is not list or not members:
            raise ValueError("it has no name or no members")
        self._note_members(index, fields)
        self._history, self._history_index = history, index
        self.sessions.end_history(index)
        self.cursors.end_history()

    def _use(self, header: FrameHeader, names: Sequence[str]) -> None:
        """Note the features that are in use from here on. Raises ApplyFailed if this program lacks one."""
        if lacking := sorted(set(names) - set(self._supported)):
            text = f"from here on the log uses the feature {lacking[0]!r:.40}, which this version does not know"
            raise _failed(header, text, UPGRADE)
        if SESSION_TTL in names and SESSION_TTL not in self.features:
            self.sessions.expire_from(header.timestamp)
        self.features |= frozenset(names)

    def steps_of(self, frame: Frame) -> Generator[None, int, _Reply | None]:
        """For `Execution`: after each `yield`, execute as many commands as were sent. Raises ApplyFailed."""
        most = yield
        header = frame.header
        if header.kind == Kind.SYSTEM:
            return None
        runs, commands = self._runs_and_commands(frame)
        verdicts = Verdicts(self.sessions, commands, header.timestamp) if runs else None
        positions = None
        if verdicts is not None:
            try:
                verdicts.judge(runs)
            except MemoryError:
                raise  # As in `_apply_system`.
            except Exception as error:
                text = f"a session's replies cannot be read back ({reason_of(error)})"
                raise _failed(header, text, FIX_MACHINE) from error
            positions = verdicts.positions()
        executing = len(commands) if positions is None else len(positions)
        executed: list[object] = self._execute(header, commands, positions, 0, most) if executing else []
        if len(executed) < executing:
            executed = executed.copy()  # The first one is the machine's own.
        while len(executed) < executing:
            most = yield
            executed += self._execute(header, commands, positions, len(executed), most)
        if len(commands) > SHORT_REPLY:
            yield
        replies = executed if verdicts is None else verdicts.replies(executed)
        results, refused, packed = self._packed(header, commands, replies)
        if verdicts is not None:
            verdicts.record(frame, results, refused, packed)
        if len(packed) > SHORT_REPLY_BYTES:
            yield
        digest = next_digest(self.digest, header.index, header.crc32c, packed)
        return _Reply(results, refused, len(packed), digest, () if verdicts is None else verdicts.answered())

    def _runs_and_commands(self, frame: Frame) -> tuple[Runs, Sequence[object]]:
        """The frame's runs (empty if no record has a session) and its values. Raises ApplyFailed."""
        header, payload = frame
        if header.kind == Kind.BLOB and not self._takes_blobs:
            raise _failed(header, f"it is a blob, and machine {self.machine.name!r} does not accept blobs", FIX_MACHINE)
        only_run = ((header.session, header.sequence, header.count),) if header.session else ()
        try:
            match header.kind:
                case Kind.RECORDS:
                    return only_run, decode_values(payload, header.count)
                case Kind.RUNS:
                    return decode_runs(payload, header.count)
                case Kind.BLOB:
                    return only_run, [decode_blob(payload)[1]]
                case kind:
                    raise ValueError(f"frames of kind {kind} hold no commands")
        except MemoryError:
            raise  # As in `_apply_system`.
        except Exception as error:  # Whatever is wrong with the bytes: the frame cannot be applied.
            raise _failed(header, f"the payload cannot be read ({reason_of(error)})", REPORT) from error

    def _execute(
        self, header: FrameHeader, commands: Sequence[object], positions: list[int] | None, first: int, most: int
    ) -> list[object]:
        """The results or Refused of `most` commands, from number `first` on, of those at `positions` in the frame.

        None for `positions` means all commands. Raises ApplyFailed.
        """
        contexts: Sequence[Context] = Contexts(header.index, header.count, header.epoch, header.timestamp)
        if positions is not None:
            positions = positions[first : first + most]
            commands, contexts = [commands[at] for at in positions], [contexts[at] for at in positions]
        elif first or most < header.count:
            commands = commands[first : first + most]
            positions = list(range(first, first + len(commands)))
            contexts = Contexts(header.index + first, len(commands), header.epoch, header.timestamp)
        try:
            results = self._apply_batch(commands, contexts)
        except CommandFailed as failure:
            cause = failure.__cause__ or failure
            at = failure.position if 0 <= failure.position < len(commands) else 0
            what = f"apply of {short_command(commands[at])} raised {in_one_line(failure.reason)}"
            raise self._machine_failed(header, what, cause, at if positions is None else positions[at]) from cause
        except (Exception, SystemExit) as error:  # A machine that would end the process would end each in turn.
            what = f"apply_batch of {_shown(commands)} raised {reason_of(error)}"
            raise self._machine_failed(header, what, error, 0 if positions is None else positions[0]) from error
        if type(results) is list and len(results) == len(commands):
            return results
        if isinstance(results, list | tuple) and len(results) == len(commands):
            return list(results)
        gave = f"{len(results)} results" if isinstance(results, list | tuple) else type(results).__name__
        text = f"apply_batch at {defined_at(type(self.machine), 'apply_batch')} gave {gave} for {_shown(commands)}"
        raise _failed(header, text, FIX_MACHINE, position=0 if positions is None else positions[0])

    def _machine_failed(self, header: FrameHeader, what: str, error: BaseException, position: int) -> ApplyFailed:
        """The error for an exception of the machine, with the location in its code."""
        do = RESTART if isinstance(error, MemoryError) else FIX_MACHINE
        return _failed(header, f"{what} at {raised_at(error, type(self.machine))}", do, position=position)

    def _packed(
        self, header: FrameHeader, commands: Sequence[object], results: list[object]
    ) -> tuple[list[object], list[RefusalRow], bytes]:
        """The results (None for refused records), the refusals, and both packed as msgpack. Raises ApplyFailed."""
        try:
            # Usually nothing is refused, and packing, which fails on a Refused, is the fastest way to find out.
            return results, [], pack([results, []])
        except PayloadInvalid:
            refused = [[position, it.code, it.text] for position, it in enumerate(results) if isinstance(it, Refused)]
        kept = [None if isinstance(result, Refused) else result for result in results]
        try:
            return kept, refused, pack([kept, refused])
        except PayloadInvalid as error:
            position = _first_unpackable(kept, refused)
            text = f"the result of {short_command(commands[position])} is not a msgpack value ({reason_of(error)})"
            text = f"{text}; apply is at {defined_at(type(self.machine), 'apply')}"
            raise _failed(header, text, FIX_MACHINE, position=position) from error

    def _apply_one_by_one(self, commands: Sequence[object], contexts: Sequence[Context]) -> list[object]:
        """`apply_batch` for a machine that has none."""
        results: list[object] = []
        apply = self.machine.apply
        for command, context in zip(commands, contexts, strict=True):
            try:
                results.append(apply(command, context))
            except Refused as refusal:
                results.append(refusal)
            except (Exception, SystemExit) as error:
                raise CommandFailed(position=len(results), reason=reason_of(error)) from error
        return results


def next_digest(digest: bytes, index: int, crc32c: int, packed_reply: bytes) -> bytes:
    """The digest after the frame at `index`; `packed_reply` is its msgpack([results, refused])."""
    chain = blake2b(_CHAIN_PREFIX.pack(digest, index, crc32c), digest_size=DIGEST_BYTES)
    # Not joined before: it may have megabytes.
    chain.update(packed_reply)
    return chain.digest()


def _text(fields: Mapping[str, object], field: str) -> str | None:
    """The name or the owner of a session to open, None if absent or empty. Raises TypeError."""
    text = fields.get(field)
    if text is not None and type(text) is not str:
        raise TypeError(f"a session's {field} is text, not {type(text).__name__}")
    return text or None


def _first_unpackable(results: list[object], refused: list[RefusalRow]) -> int:
    for position, result in enumerate(results):
        try:
            pack(result)
        except PayloadInvalid:
            return position
    for refusal in refused:
        try:
            pack(refusal)
        except PayloadInvalid:
            return int(refusal[0])
    return 0


def _shown(commands: Sequence[object]) -> str:
    """The commands of a call of `apply_batch`, in words."""
    return f"{len(commands)} commands, the first {short_command(commands[0])}"


def _failed(header: FrameHeader, text: str, do: str, *, position: int = 0) -> ApplyFailed:
    return ApplyFailed(index=header.index + position, text=text, do=do)

"""The applier: committed frames in, results and the digest out. It never goes on after a failure."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from quire.log import Frame, FrameHeader, Kind, PayloadInvalid, decode_blob, decode_runs, decode_values, pack

from .digest import EMPTY_DIGEST, next_digest
from .errors import ApplyFailed, FrameOutOfPlace, PlaceFailed, reason_of
from .machine import Context, Contexts, Refused, StateMachine

ApplyBatch = Callable[[Sequence[Any], Sequence[Context]], list[Any]]


class Applied(NamedTuple):
    """One applied frame: its range [index, next_index), and for each record its result.

    A refused record's result is None and `refused` holds its [place, code, text]. A system frame has no results.
    """

    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody needs here.
    next_index: int
    epoch: int
    results: list[Any]
    refused: list[list[Any]]


class Applier:
    """Feeds frames, in order and each once, to a machine; keeps applied_index and digest. One thread.

    After a failure (`failure` is set) the machine may stand in the middle of a frame: applied_index and digest stay
    at the last whole one, and state is no longer served.
    """

    def __init__(self, machine: StateMachine, *, applied_index: int = 0, digest: bytes = EMPTY_DIGEST) -> None:
        self.machine = machine
        self.applied_index = applied_index
        self.digest = digest
        self.failure: ApplyFailed | None = None
        own: ApplyBatch | None = getattr(machine, "apply_batch", None)
        self._apply_batch: ApplyBatch = own or self._apply_one_by_one
        self._takes_blobs = bool(getattr(machine, "takes_blobs", False))

    def apply(self, frame: Frame) -> Applied:
        """Apply the next frame, whole; move applied_index and, unless it is a system frame, the digest.

        Raises:
            ApplyFailed: the machine raised something else than Refused, or the frame cannot be applied; the same
                again at every later call.
            FrameOutOfPlace: it is not the frame at applied_index; nothing was changed.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        header = frame.header
        if header.index != self.applied_index:
            raise FrameOutOfPlace(index=header.index, applied_index=self.applied_index)
        next_index = header.next_index
        if header.kind == Kind.SYSTEM:
            self.applied_index = next_index
            return Applied(header.index, next_index, header.epoch, [], [])
        try:
            results, refused, packed = _reply(header, self._results(header, self._commands(frame)))
        except ApplyFailed as failure:
            self.failure = failure
            raise
        except BaseException as error:  # KeyboardInterrupt, MemoryError: the machine may have moved, so no second try.
            self.failure = _failed(header, f"interrupted ({reason_of(error)})")
            raise
        self.digest = next_digest(self.digest, header.index, header.crc32c, packed)
        self.applied_index = next_index
        return Applied(header.index, next_index, header.epoch, results, refused)

    def state(self) -> Any:
        """The machine's whole state, `query(None)`. Raises ApplyFailed once applying has failed."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        return self.machine.query(None)

    def _commands(self, frame: Frame) -> list[Any]:
        """The frame's values, one for each index. Raises ApplyFailed."""
        header = frame.header
        if header.session != 0:
            raise _failed(header, f"the frame belongs to session {header.session}, and sessions are not known here")
        if header.kind == Kind.BLOB and not self._takes_blobs:
            raise _failed(header, f"a blob, and machine {self.machine.name!r} takes none")
        try:
            runs, values = _decoded(frame)
        except Exception as error:  # Whatever is wrong with the bytes, this frame cannot be applied.
            raise _failed(header, f"the payload cannot be read ({reason_of(error)})") from error
        for session, _, _ in runs:
            if session != 0:
                raise _failed(header, f"a run belongs to session {session}, and sessions are not known here")
        return values

    def _results(self, header: FrameHeader, commands: list[Any]) -> list[Any]:
        """For each command its result, or its Refused. Raises ApplyFailed."""
        contexts = Contexts(header.index, header.count, header.epoch, header.timestamp)
        try:
            results = self._apply_batch(commands, contexts)
        except PlaceFailed as failure:
            cause = failure.__cause__ or failure
            raise _failed(header, f"apply raised {failure.reason}", place=failure.place) from cause
        except Exception as error:
            raise _failed(header, f"apply_batch raised {reason_of(error)}") from error
        if len(results) != header.count:
            raise _failed(header, f"apply_batch gave {len(results)} results for {header.count} commands")
        return results

    def _apply_one_by_one(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        """`apply_batch` for a machine without its own."""
        results: list[Any] = []
        apply = self.machine.apply
        for command, context in zip(commands, contexts, strict=True):
            try:
                results.append(apply(command, context))
            except Refused as refusal:
                results.append(refusal)
            except Exception as error:
                raise PlaceFailed(place=len(results), reason=reason_of(error)) from error
        return results


def _decoded(frame: Frame) -> tuple[Sequence[Any], list[Any]]:
    """The frame's runs, where it has any, and its values."""
    payload, count = frame.payload, frame.header.count
    match frame.header.kind:
        case Kind.RECORDS:
            return (), decode_values(payload, count)
        case Kind.RUNS:
            return decode_runs(payload, count)
        case Kind.BLOB:
            return (), [decode_blob(payload)[1]]
        case kind:
            raise ValueError(f"frames of kind {kind} hold no commands")


def _reply(header: FrameHeader, results: list[Any]) -> tuple[list[Any], list[list[Any]], bytes]:
    """The results with None for the refused ones, the refused ones, and both as msgpack. Raises ApplyFailed."""
    try:
        # Nearly always nothing is refused, and msgpack itself, which cannot pack a Refused, is the quickest to say so.
        return results, [], pack([results, []])
    except PayloadInvalid:
        refused = [[place, it.code, it.text] for place, it in enumerate(results) if isinstance(it, Refused)]
    kept = [None if isinstance(result, Refused) else result for result in results]
    try:
        return kept, refused, pack([kept, refused])
    except PayloadInvalid as error:
        place = _first_unpackable(kept)
        raise _failed(header, f"a result is no msgpack value ({reason_of(error)})", place=place) from error


def _first_unpackable(results: list[Any]) -> int:
    for place, result in enumerate(results):
        try:
            pack(result)
        except PayloadInvalid:
            return place
    return 0


def _failed(header: FrameHeader, text: str, *, place: int = 0) -> ApplyFailed:
    return ApplyFailed(index=header.index + place, text=text)

"""Machines that replicas could not rely on, each in one way."""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quire.log import pack, unpack
from quire.sm import Context, Refused


class Sound:
    """Words, as it should be: adds one, refuses one that is there, and answers how many there are."""

    name = "sound"
    version = 1

    def __init__(self, initial: Any) -> None:
        self.words: list[str] = []

    def check(self, command: Any) -> None:
        if not isinstance(command, str):
            raise Refused("NO_WORD", "a word is text")

    def apply(self, command: Any, context: Context) -> Any:
        if command in self.words:
            raise Refused("KNOWN", "the word is there")
        self.words.append(command)
        return len(self.words)

    def query(self, request: Any) -> Any:
        return self.words

    def snapshot(self) -> Iterator[bytes]:
        yield pack(self.words)

    def restore(self, chunks: Iterable[bytes]) -> None:
        words: Any = unpack(b"".join(chunks))
        self.words = list(words)


class Limited(Sound):
    """Sound, and takes a limit on the characters of its words."""

    limit = 0

    def limit_state(self, limit_bytes: int) -> None:
        self.limit = limit_bytes

    def apply(self, command: Any, context: Context) -> Any:
        if self.limit and len("".join([*self.words, command])) > self.limit:
            raise Refused("FULL", "there is no room for the word")
        return super().apply(command, context)


class ForgetsItsLimit(Limited):
    def restore(self, chunks: Iterable[bytes]) -> None:
        super().restore(chunks)
        self.limit = 0


class FillsBeforeItRefuses(Limited):
    def apply(self, command: Any, context: Context) -> Any:
        try:
            return super().apply(command, context)
        except Refused as refusal:
            if refusal.code == "FULL":
                self.words.append("")
            raise


class Asked(Sound):
    """Sound, and answers where a word stands, differently on each replica; it refuses the request None."""

    def query(self, request: Any) -> Any:
        if request not in self.words:
            raise Refused("UNKNOWN", "the word is not there")
        return [self.words.index(request), id(self)]


class RefusesByHash(Sound):
    def query(self, request: Any) -> Any:
        raise Refused("UNKNOWN", f"none of {hash('words')}")


class RefusesOnceRestored(Sound):
    is_restored = False

    def query(self, request: Any) -> Any:
        if self.is_restored:
            raise Refused("AWAY", "the words are away")
        return len(self.words)

    def restore(self, chunks: Iterable[bytes]) -> None:
        super().restore(chunks)
        self.is_restored = True


class RefusesQueriesByNumber(Sound):
    def query(self, request: Any) -> Any:
        raise Refused(4, "no")  # type: ignore[arg-type]


class RaisesWhenAsked(Sound):
    def query(self, request: Any) -> Any:
        return {"to": 1}[request]


class Timed(Sound):
    """Sound, and answers otherwise by the time since its first word."""

    since: int | None = None

    def apply(self, command: Any, context: Context) -> Any:
        if self.since is None:
            self.since = context.timestamp
        return self.after(context.timestamp - self.since, super().apply(command, context))

    def after(self, elapsed_us: int, count: int) -> Any:
        return [count, elapsed_us]

    def snapshot(self) -> Iterator[bytes]:
        yield pack([self.words, self.since])

    def restore(self, chunks: Iterable[bytes]) -> None:
        content: Any = unpack(b"".join(chunks))
        self.words, self.since = list(content[0]), content[1]


class DrawsAfterAMinute(Timed):
    def after(self, elapsed_us: int, count: int) -> Any:
        return random.getrandbits(64) if elapsed_us > 60_000_000 else count


class DrawsWithinAMinute(Timed):
    def after(self, elapsed_us: int, count: int) -> Any:
        return random.getrandbits(64) if 0 < elapsed_us < 60_000_000 else count


class DrawsAfterAPause(Sound):
    """When some minutes passed since the last word."""

    last: int | None = None

    def apply(self, command: Any, context: Context) -> Any:
        pause_us = context.timestamp - (self.last or context.timestamp)
        self.last = context.timestamp
        count = super().apply(command, context)
        return random.getrandbits(64) if 60_000_000 < pause_us < 3_600_000_000 else count


class DrawsUnderAnotherLeader(Sound):
    def apply(self, command: Any, context: Context) -> Any:
        count = super().apply(command, context)
        return random.getrandbits(64) if context.epoch > 1 else count


class ForgetsTheTime(Timed):
    def snapshot(self) -> Iterator[bytes]:
        yield pack([self.words, None])


class PassesAnything(Sound):
    def check(self, command: Any) -> None:
        return


class RefusesByState(Sound):
    def check(self, command: Any) -> None:
        super().check(command)
        if command in self.words:
            raise Refused("KNOWN", "the word is there")


class ChecksWithEffect(Sound):
    def check(self, command: Any) -> None:
        super().check(command)
        self.words.append(command)


class RefusesByNumber(Sound):
    def check(self, command: Any) -> None:
        if not isinstance(command, str):
            raise Refused(4, "a word is text")  # type: ignore[arg-type]


class ChecksOtherwiseInBatches(Sound):
    def check_batch(self, commands: Sequence[Any]) -> list[list[Any]]:
        return []


class Raises(Sound):
    def apply(self, command: Any, context: Context) -> Any:
        raise KeyError(command)


class RefusesTooLate(Sound):
    def apply(self, command: Any, context: Context) -> Any:
        self.words.append(command)
        if self.words.count(command) > 1:
            raise Refused("KNOWN", "the word is there")


class AnswersASet(Sound):
    def apply(self, command: Any, context: Context) -> Any:
        return {command}


class AnswersItsState(Sound):
    def apply(self, command: Any, context: Context) -> Any:
        super().apply(command, context)
        return self.words


class AnswersAtLength(Sound):
    def apply(self, command: Any, context: Context) -> Any:
        return "x" * ((64 << 10) - 2)


class ChangesCommands(Sound):
    def check(self, command: Any) -> None:
        return

    def apply(self, command: Any, context: Context) -> Any:
        if isinstance(command, list):
            command.clear()


class BatchesOtherwise(Sound):
    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        self.words += commands
        return [len(self.words)] * len(commands)


class BatchesToAnotherState(Sound):
    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        results: list[Any] = []
        for command, context in zip(commands, contexts, strict=True):
            try:
                results.append(self.apply(command, context))
            except Refused as refusal:
                results.append(refusal)
        self.words.reverse()
        return results


class BatchesTooLittle(Sound):
    def apply_batch(self, commands: Sequence[Any], contexts: Sequence[Context]) -> list[Any]:
        return []


class QueriesWithEffect(Sound):
    def query(self, request: Any) -> Any:
        self.words.append("asked")


class AnswersASetWhenAsked(Sound):
    def query(self, request: Any) -> Any:
        return set(self.words)


class SnapshotsText(Sound):
    def snapshot(self) -> Iterator[bytes]:
        yield "words"  # type: ignore[misc]


class SnapshotsAtOnce(Sound):
    def snapshot(self) -> Iterator[bytes]:
        yield bytes((16 << 20) + 1)


class ForgetsInSnapshots(Sound):
    def snapshot(self) -> Iterator[bytes]:
        yield pack(sorted(self.words)[:1])


class AddsToWhatItHolds(Sound):
    def restore(self, chunks: Iterable[bytes]) -> None:
        words: Any = unpack(b"".join(chunks))
        self.words += words


class ForgetsBesides(Sound):
    """It counts beside its snapshot."""

    def __init__(self, initial: Any) -> None:
        super().__init__(initial)
        self.count = 0

    def apply(self, command: Any, context: Context) -> Any:
        self.count += 1
        return self.count


class Hashes(Sound):
    def apply(self, command: Any, context: Context) -> Any:
        return hash(command) % 1000


class SnapshotsByHash(Sound):
    def snapshot(self) -> Iterator[bytes]:
        yield pack(sorted(self.words, key=hash))


class LooksAtTheClock(Sound):
    def apply(self, command: Any, context: Context) -> Any:
        return time.strftime("%H", time.localtime(0))

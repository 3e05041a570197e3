"""What a client's stream has to send and what of it awaits an answer: a window, sequences, deadlines. No I/O.

    submitted ──► queue ──────────────► flight ──────────────► answered
                  groups without a       numbered, in the order
                  sequence               of their sequences

A group gets its sequence when it is about to be sent. What a stream leaves unanswered when it breaks is *doubtful*: it
keeps its sequences and its grouping and is sent again just so, until its session answers it. The doubtful ones are
the first in flight, for all others were sent later.

Sequences are given anew only to what provably is not in the log:

- A stream's problem proves that nothing from its sequence on was taken from *this* stream. What was never on another
  one goes back to the queue.
- A message that the cluster refuses for what it holds is refused on every stream and by every node: the check looks
  at the command alone. No stream takes anything behind a refused message. So nothing from there on is doubtful.
- A session that is gone never comes back and executes nothing: what was on this stream alone goes under another one.

Once its deadline has passed, what is in flight is reported as unknown, and stays: the sequences behind it need it.
What is in the queue is withdrawn.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from .errors import (
    BadRequest,
    ClientError,
    Halted,
    OutcomeUnknown,
    ReplyGone,
    SessionError,
    SessionExpired,
    SessionFenced,
    Unavailable,
)
from .group import ARRAY_HEAD_BYTES, Answer, Group, Item, fail
from .session import Session

WINDOW_BYTES = 4 << 20  # Of commands that await their answers; as much as a node lets wait.
MESSAGE_COMMANDS = 1024  # A group of single commands is full with so many: several messages fill a window.
MESSAGE_BYTES = 512 << 10
MESSAGES_UNANSWERED = 16  # Beyond it, what comes is gathered into one message until an answer is there.
GATHERING_S = 0.1  # A group takes no more after so long: all of it shares the deadline of its first.

LIMIT_EXCEEDED = "urn:quire:problem:limit-exceeded"
SESSION_ERRORS: dict[str, type[SessionError]] = {
    "SESSION_FENCED": SessionFenced,
    "SESSION_EXPIRED": SessionExpired,
    "REPLY_GONE": ReplyGone,
    "SEQUENCE_GAP": SessionError,
    "SEQUENCE_REUSED": SessionError,
}

MakeError = Callable[[], ClientError]


class OutOfPlace(Exception):
    """A server said something that does not follow; only another stream helps."""


class Pipeline:
    """The commands of one client. For one event loop. Closed until a session is there: nothing has room."""

    def __init__(self, timeout_s: float, *, halt_on_failure: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._halts = halt_on_failure
        self._queue: deque[Group] = deque()
        self._flight: deque[Group] = deque()
        self._open: Group | None = None  # The last one in the queue, while it takes more.
        self._awaiting_room: deque[tuple[Item, float, asyncio.Future[Answer]]] = deque()
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._next_sequence = 1
        self._window = 0
        self._message_limit = 0
        self._commands = 0
        self._bytes = 0
        self.crowded = False  # A group became full: whoever goes on submitting should let the loop send it.
        self.halted = False
        self.trouble = "no server answers"  # Why the last attempt to get an answer failed.

    # Taking

    def open(self, session: Session) -> None:
        """Give room, and sequences from the session's next on. Nothing may be in flight."""
        self._next_sequence = session.sequence + 1
        self._window, self._message_limit = session.window, session.message_bytes
        self._admit()

    def resume_at(self, sequence: int) -> None:
        """Give the next command this sequence. Nothing may be queued or in flight."""
        self._next_sequence = sequence

    def submit(self, packed: bytes, commands: int, *, batch: bool) -> Answer | None:
        """Take a call's commands; None if there is no room for them now, or others wait for it already.

        Raises:
            BadRequest: they do not fit any message.
        """
        if self._awaiting_room or not self._has_room(packed, commands):
            return None
        answer: Answer = self._loop.create_future()
        self._take(Item(packed, commands, batch, answer), self._loop.time())
        return answer

    async def submit_later(self, packed: bytes, commands: int, *, batch: bool) -> Answer:
        """Take a call's commands once there is room. Raises as `submit`. Whoever cancels this has submitted nothing."""
        admitted: asyncio.Future[Answer] = self._loop.create_future()
        item = Item(packed, commands, batch, self._loop.create_future())
        self._awaiting_room.append((item, self._loop.time(), admitted))
        self._wake.set()
        try:
            async with asyncio.timeout(self._timeout_s):
                self._admit()
                return await admitted
        except TimeoutError:
            # Without a session nothing has room, and what is wrong is only that.
            full = f"nothing had room for {self._timeout_s:g} s; {self.trouble}"
            none = f"{self.trouble}, for {self._timeout_s:g} s"
            raise Unavailable(full if self._window else none) from None
        finally:
            if admitted.cancelled():
                self._admit()

    def _has_room(self, packed: bytes, commands: int) -> bool:
        if self._commands + commands <= self._window and self._bytes + len(packed) <= WINDOW_BYTES:
            return True
        if self._window:
            self._refuse_what_never_fits(packed, commands)
        return False

    def _take(self, item: Item, submitted_at: float) -> None:
        group, size = self._open, len(item.packed)
        if (
            group is None
            or group.commands + item.commands > MESSAGE_COMMANDS
            or group.size + size > MESSAGE_BYTES
            or submitted_at > group.closes_at
        ):
            self._refuse_what_never_fits(item.packed, item.commands)
            group = self._begin_group(submitted_at)
        group.add(*item)
        self._commands += item.commands
        self._bytes += size

    def _refuse_what_never_fits(self, packed: bytes, commands: int) -> None:
        size = len(packed) + ARRAY_HEAD_BYTES
        for what, value, limit in (
            ("the number of commands in a batch", commands, self._window),
            ("what is sent at once, as msgpack,", size, self._message_limit),
        ):
            if value > limit:
                detail = f"{what} is {value}, above the limit of {limit}"
                problem = {"type": LIMIT_EXCEEDED, "status": 413, "detail": detail}
                raise BadRequest({**problem, "what": what, "size": value, "limit": limit})

    def _begin_group(self, submitted_at: float) -> Group:
        self.crowded = self._open is not None
        group = self._open = Group(submitted_at + self._timeout_s, submitted_at + GATHERING_S)
        self._queue.append(group)
        self._wake.set()
        self._watch()
        return group

    def _admit(self) -> None:
        """Take what waits for room, as far as there is some."""
        awaiting = self._awaiting_room
        while awaiting:
            item, submitted_at, admitted = awaiting[0]
            if not admitted.done():
                try:
                    if not self._has_room(item.packed, item.commands):
                        return
                    self._take(item, submitted_at)
                    admitted.set_result(item.answer)
                except BadRequest as error:
                    admitted.set_exception(error)
            awaiting.popleft()

    # Sending

    @property
    def has_work(self) -> bool:
        """Whether there is anything that an answer, or room, is awaited for."""
        return bool(self._queue or self._flight or self._awaiting_room)

    async def work(self) -> None:
        """Return when there is any."""
        while not self.has_work:
            self._wake.clear()
            await self._wake.wait()

    def unanswered(self) -> list[Group]:
        """What a new stream begins with: all that is in flight, as it was."""
        return list(self._flight)

    async def next_group(self) -> Group:
        """The next group to send, in flight from now on."""
        while not self._queue or len(self._flight) >= MESSAGES_UNANSWERED:
            self._wake.clear()
            await self._wake.wait()
        group = self._queue.popleft()
        if group is self._open:
            self._open = None
        group.sequence = self._next_sequence
        self._next_sequence += group.commands
        self._flight.append(group)
        return group

    # Answers

    def answered(self, sequence: int, index: int, epoch: int, results: list[Any], refused: list[list[Any]]) -> None:
        """Settle the first group in flight.

        Raises:
            OutOfPlace: this is not its answer.
            SessionError: its session does not answer it; `end` is to follow.
        """
        group = self._flight[0] if self._flight else None
        if group is None or group.sequence != sequence or len(results) != group.commands:
            raise OutOfPlace(f"an answer to sequence {sequence}, which was not the next")
        if len(refused) == group.commands and (error := SESSION_ERRORS.get(refused[0][1])):
            raise error(*refused[0][1:])
        self._flight.popleft()
        group.answer(index, epoch, results, refused)
        self._withdraw([group])

    def interrupted(self) -> None:
        """The stream ended without a word: all that is in flight may have come to something."""
        for group in self._flight:
            group.doubtful = True

    def returned(self, sequence: int) -> None:
        """The stream took nothing from a sequence on. Raises OutOfPlace."""
        self._check_next(sequence)
        doubtful = [group for group in self._flight if group.doubtful]
        back = list(self._flight)[len(doubtful) :]
        self._flight = deque(doubtful)
        if back:
            self._requeue(back[0].sequence, back)

    def refused(self, sequence: int, problem: Mapping[str, Any]) -> None:
        """The message at a sequence is refused for what it holds; the rest of it, and all behind it, goes again.

        Raises:
            OutOfPlace: it was not the next, or nothing of it is refused.
        """
        self._check_next(sequence)
        head, *others = self._flight
        before, failed, after = head.parts(problem)
        if not before and not failed:
            raise OutOfPlace(f"a refusal of sequence {sequence} that names none of its commands")
        self._flight.clear()
        for part in (*before, *after):
            self._commands += part.commands
            self._bytes += part.size
        self._requeue(head.sequence, [*before, *after, *others])
        self._withdraw([head])
        if failed and self._halts:
            self._halt(len(before))

    def expired(self, unknown: str) -> None:
        """The session is gone. It executed nothing that no earlier stream took: that goes again, under the next one."""
        doubtful = [group for group in self._flight if group.doubtful]
        back = list(self._flight)[len(doubtful) :]
        self._flight.clear()
        self._window = 0
        for group in doubtful:
            group.fail(lambda: OutcomeUnknown(unknown))
        self._requeue(1, back)
        self._withdraw(doubtful)
        if doubtful and self._halts:
            self._halt(0)

    def _check_next(self, sequence: int) -> None:
        # 0 stands for the first message of a stream that could not even be read.
        if not self._flight or sequence not in (0, self._flight[0].sequence):
            raise OutOfPlace(f"a problem with sequence {sequence}, which was not the next")

    def _requeue(self, sequence: int, groups: list[Group]) -> None:
        """Put groups, provably not in the log, in front of the queue; their sequences are free.

        What was reported as unknown is dropped: it did not happen.
        """
        self._next_sequence = sequence
        for group in reversed(groups):
            group.doubtful = False
            if group.live:
                self._queue.appendleft(group)
        self._withdraw([group for group in groups if not group.live])

    def _withdraw(self, groups: list[Group]) -> None:
        """Give back the room of groups that are neither queued nor in flight any more."""
        for group in groups:
            self._commands -= group.commands
            self._bytes -= group.size
        if self._awaiting_room:
            self._admit()
        if self._queue:
            self._wake.set()
        elif not self._flight:
            self._settled.set()

    # Ends

    def _watch(self) -> None:
        """See to it that the oldest deadline is kept."""
        if self._timer is None:
            oldest = next((group for group in chain(self._flight, self._queue) if group.live), None)
            if oldest is not None:
                self._timer = self._loop.call_at(oldest.deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now, expired = self._loop.time(), False
        for group in self._flight:
            if group.live and group.deadline <= now:
                group.fail(lambda: OutcomeUnknown(f"no answer within {self._timeout_s:g} s; {self.trouble}"))
                expired = True
        unsent = []
        while self._queue and self._queue[0].deadline <= now:
            unsent.append(self._queue.popleft())
            unsent[-1].fail(lambda: Unavailable(f"{self.trouble}, for {self._timeout_s:g} s"))
        if not self._queue:
            self._open = None
        self._withdraw(unsent)
        if self._halts and (expired or unsent):
            self._halt(0)
        self._settled.set()
        self._watch()

    def _halt(self, kept: int) -> None:
        """Send nothing of the queue but its first groups, and take nothing more."""
        self.halted = True
        withdrawn = list(self._queue)[kept:]
        self._queue = deque(list(self._queue)[:kept])
        self._shut(withdrawn, Halted)
        self._withdraw(withdrawn)

    def end(self, error: MakeError, unknown: str) -> None:
        """Settle everything: what is doubtful as unknown, all else by the error; take nothing until `open`."""
        for group in self._flight:
            group.fail((lambda: OutcomeUnknown(unknown)) if group.doubtful else error)
        withdrawn = [*self._flight, *self._queue]
        self._flight.clear()
        self._queue.clear()
        self._shut(withdrawn, error)
        self._withdraw(withdrawn)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reject_awaiting(self, error: MakeError) -> None:
        """Tell those who wait for room."""
        while self._awaiting_room:
            fail(self._awaiting_room.popleft()[-1], error)

    def _shut(self, withdrawn: list[Group], error: MakeError) -> None:
        self._open = None
        self._window = 0
        for group in withdrawn:
            group.fail(error)
        self.reject_awaiting(error)

    async def drained(self) -> None:
        """Return when nobody waits for an answer any more; the latest deadline sees to that."""
        while self._awaiting_room or any(group.live for group in chain(self._flight, self._queue)):
            self._settled.clear()
            await self._settled.wait()

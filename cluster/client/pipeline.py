"""What a client has yet to send, and what awaits an answer: the window, sequences and deadlines. No I/O.

    submitted ──► queue ──────────────► in flight ───────────► answered
                  messages without a     numbered, in the order
                  sequence               of their sequences

A message gets its sequence just before it is sent. A message whose stream breaks before the answer is *in doubt*: it
keeps its sequence and its content, and is resent unchanged until its session answers it. Messages in doubt come first
in flight, since all others were sent later.

A sequence is reused only if its command provably is not in the log:

- A problem proves that *this* stream took nothing from the problem's sequence on. Messages that were never sent on
  another stream return to the queue, without what was refused for its content.
- It proves nothing about a message in doubt: an earlier stream may have led to a node with other code or other limits.
  If such a message is refused for its content, no stream will take it or anything after it. So everything in doubt is
  reported as unknown, and the client leaves the session: what only this stream carried is resent under the next one.
- A session that is gone or was left does not execute anything that is sent under the next one.

When its deadline passes, a message in flight is reported as unknown but stays, because the sequences after it depend on
it. A message in the queue is withdrawn.
"""

import asyncio
from collections import deque
from itertools import chain, islice

from quire.log import Value

from .errors import (
    BadRequest,
    ClientError,
    Halted,
    HistoryChanged,
    OutcomeUnknown,
    Problem,
    Refusal,
    SessionExpired,
    SessionFenced,
    Unavailable,
    session_error_of,
)
from .message import ARRAY_HEAD_BYTES, Answer, BatchAnswer, MakeError, Message, Submission

WINDOW_BYTES = 4 << 20  # Of commands that await their answers: what a node buffers for one session.
MESSAGE_COMMANDS = 1024  # Single commands in a message, so that several messages fill a window.
MESSAGE_BYTES = 512 << 10
MESSAGES_UNANSWERED = 16  # With more in flight, new commands gather in one message until an answer comes.
GATHERING_S = 0.1  # How long a message takes submissions: all of them share the deadline of the first.

LIMIT_EXCEEDED = "urn:quire:problem:limit-exceeded"


class OutOfSequence(ClientError):
    """A server answered a sequence that was not next. Only a new stream helps."""


class Pipeline:
    """The commands of one client, for one event loop. Until a session is open, the window is zero."""

    def __init__(self, timeout_s: float, *, halt_on_failure: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._halts = halt_on_failure
        self._queue: deque[Message] = deque()
        self._in_flight: deque[Message] = deque()
        self._gathering: Message | None = None  # The last one in the queue, while it takes submissions.
        self._awaiting_space: deque[tuple[Submission, float, asyncio.Future[None]]] = deque()
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._next_sequence = 1
        self._window = 0
        self._message_limit = 0
        self._commands = 0
        self._bytes = 0
        self.message_full = False  # The caller should yield to the loop, which then sends it.
        self.halted = False
        self.last_failure = "no server answers"  # Why the last attempt to get an answer failed.

    # Submitting

    def open(self, next_sequence: int, window: int, message_bytes: int) -> None:
        """Open the window of a new session. Nothing may be in flight."""
        self._next_sequence = next_sequence
        self._window, self._message_limit = window, message_bytes
        self._admit()

    def resume_at(self, sequence: int) -> None:
        """Give the next command this sequence. Nothing may be queued or in flight.

        If an earlier client gave it to a command, the client halts as under `halt_on_failure`: commands after a failed
        one may have executed for the earlier client, and would execute again under another sequence.
        """
        self._halts |= sequence < self._next_sequence
        self._next_sequence = sequence

    def submit(self, packed: bytes) -> Answer | None:
        """Queue one command; None if the window has no space, or earlier calls wait for it.

        Raises:
            BadRequest: it exceeds the limits of a message.
        """
        if self._awaiting_space or not self._has_space(packed, 1):
            return None
        answer: Answer = self._loop.create_future()
        self._take(Submission(packed, 1, answer, None), self._loop.time())
        return answer

    def submit_batch(self, packed: bytes, commands: int) -> BatchAnswer | None:
        """Queue the commands of a batch. Otherwise like `submit`."""
        if self._awaiting_space or not self._has_space(packed, commands):
            return None
        reply: BatchAnswer = self._loop.create_future()
        self._take(Submission(packed, commands, None, reply), self._loop.time())
        return reply

    async def submit_later(self, packed: bytes) -> Answer:
        """Queue one command once the window has space. If this call is cancelled, nothing was submitted.

        Raises:
            BadRequest: it exceeds the limits of a message.
            Unavailable: the window had no space within the timeout.
        """
        answer: Answer = self._loop.create_future()
        await self._admitted(Submission(packed, 1, answer, None))
        return answer

    async def submit_batch_later(self, packed: bytes, commands: int) -> BatchAnswer:
        """Queue the commands of a batch once the window has space. Otherwise like `submit_later`."""
        reply: BatchAnswer = self._loop.create_future()
        await self._admitted(Submission(packed, commands, None, reply))
        return reply

    async def _admitted(self, submission: Submission) -> None:
        """Return once the submission is queued. Raises as `submit_later`."""
        admitted: asyncio.Future[None] = self._loop.create_future()
        self._awaiting_space.append((submission, self._loop.time(), admitted))
        self._wake.set()
        try:
            async with asyncio.timeout(self._timeout_s):
                self._admit()
                await admitted
        except TimeoutError:
            full = f"the window was full for {self._timeout_s:g} s; {self.last_failure}"
            no_session = f"{self.last_failure}, for {self._timeout_s:g} s"
            raise Unavailable(full if self._window else no_session) from None
        finally:
            if admitted.cancelled():
                self._admit()

    def _has_space(self, packed: bytes, commands: int) -> bool:
        # What fits a message always fits an empty window, however large: otherwise it would never be sent.
        fits = self._bytes + len(packed) <= WINDOW_BYTES or not self._commands
        if fits and self._commands + commands <= self._window:
            return True
        if self._window:
            self._check_limits(packed, commands)
        return False

    def _take(self, submission: Submission, submitted_at: float) -> None:
        message, size = self._gathering, len(submission.packed)
        if (
            message is None
            or message.commands + submission.commands > MESSAGE_COMMANDS
            or message.size + size > MESSAGE_BYTES
            or submitted_at > message.closes_at
        ):
            self._check_limits(submission.packed, submission.commands)
            message = self._begin_message(submitted_at)
        message.add(*submission)
        self._commands += submission.commands
        self._bytes += size

    def _check_limits(self, packed: bytes, commands: int) -> None:
        size = len(packed) + ARRAY_HEAD_BYTES
        for what, value, limit in (
            ("the number of commands in a batch", commands, self._window),
            ("the size of the commands as msgpack", size, self._message_limit),
        ):
            if value > limit:
                detail = f"{what} is {value}, above the limit of {limit}"
                sizes: Problem = {"what": what, "size": value, "limit": limit}
                raise BadRequest({"type": LIMIT_EXCEEDED, "status": 413, "detail": detail, **sizes})

    def _begin_message(self, submitted_at: float) -> Message:
        self.message_full = self._gathering is not None
        message = self._gathering = Message(submitted_at + self._timeout_s, submitted_at + GATHERING_S)
        self._queue.append(message)
        self._wake.set()
        self._set_timer()
        return message

    def _admit(self) -> None:
        """Queue waiting submissions while the window has space for them."""
        awaiting = self._awaiting_space
        while awaiting:
            submission, submitted_at, admitted = awaiting[0]
            if not admitted.done():
                try:
                    if not self._has_space(submission.packed, submission.commands):
                        return
                    self._take(submission, submitted_at)
                    admitted.set_result(None)
                except BadRequest as error:
                    admitted.set_exception(error)
            awaiting.popleft()

    # Sending

    @property
    def has_work(self) -> bool:
        """Whether any call waits for an answer or for space."""
        return bool(self._queue or self._in_flight or self._awaiting_space)

    async def wait_for_work(self) -> None:
        """Return once there is work."""
        while not self.has_work:
            self._wake.clear()
            await self._wake.wait()

    @property
    def oldest(self) -> Message | None:
        """The first message in flight."""
        return self._in_flight[0] if self._in_flight else None

    def unanswered(self) -> list[Message]:
        """The messages in flight, which a new stream resends first."""
        return list(self._in_flight)

    async def next_message(self) -> Message:
        """Number the next queued message, put it in flight and return it."""
        while not self._queue or len(self._in_flight) >= MESSAGES_UNANSWERED:
            self._wake.clear()
            await self._wake.wait()
        message = self._queue.popleft()
        if message is self._gathering:
            self._gathering = None
        message.sequence = self._next_sequence
        self._next_sequence += message.commands
        self._in_flight.append(message)
        return message

    # Answers

    def answered(
        self,
        sequence: int,
        index: int | None,
        epoch: int,
        results: list[Value],
        refused: list[Refusal],
        cut: int | None = None,
    ) -> None:
        """Resolve the first message in flight. `cut`: the results from this position on were left out.

        `index` is None if the session answered commands of the message with recorded replies.

        Raises:
            OutOfSequence: the answer is to another sequence.
            SessionError: the session refused it; the caller must `end` the pipeline, or have it `left` the session.
        """
        message = self._in_flight[0] if self._in_flight else None
        if (
            message is None
            or message.sequence != sequence
            or len(results) != (message.commands if cut is None else cut)
        ):
            raise OutOfSequence(f"a server answered sequence {sequence}, which was not next")
        if len(refused) == message.commands and (error := session_error_of(refused)):
            if not isinstance(error, SessionFenced | SessionExpired | HistoryChanged):
                # The session is open. What this stream carried after the message may be executed.
                for later in islice(self._in_flight, 1, None):
                    later.in_doubt = True
            raise error
        self._in_flight.popleft()
        message.answer(index, epoch, results, refused, cut)
        self._withdraw([message])

    def interrupted(self) -> None:
        """The stream ended without an answer: everything in flight may have been executed."""
        for message in self._in_flight:
            message.in_doubt = True

    def returned(self, sequence: int) -> None:
        """The stream took nothing from a sequence on: requeue what is not in doubt. Raises OutOfSequence."""
        self._check_next(sequence)
        in_doubt = [message for message in self._in_flight if message.in_doubt]
        back = list(self._in_flight)[len(in_doubt) :]
        self._in_flight = deque(in_doubt)
        if back:
            self._requeue(back[0].sequence, back)

    def refused(self, sequence: int, problem: Problem) -> bool:
        """The message at a sequence was refused for its content: requeue the rest of it and everything after it.

        Returns False if it was in doubt, so the session must be left. Then everything in doubt is reported as unknown,
        and what only this stream carried is requeued for the next session.

        Raises:
            OutOfSequence: the message was not next, or the problem refuses none of its commands.
        """
        self._check_next(sequence)
        head, *others = self._in_flight
        if head.in_doubt:
            detail = str(problem.get("detail") or problem.get("title") or "no reason given")
            self.left(f"it may have been executed before a server refused to take it again: {detail}")
            return False
        before, failed, after = head.parts(problem)
        if not before and not failed:
            raise OutOfSequence(f"a server refused sequence {sequence} without naming one of its commands")
        self._in_flight.clear()
        for part in (*before, *after):
            self._commands += part.commands
            self._bytes += part.size
        self._requeue(head.sequence, [*before, *after, *others])
        self._withdraw([head])
        if failed and self._halts:
            self._halt(len(before))
        return True

    def left(self, unknown: str) -> None:
        """The session is gone, or is left: report what is in doubt as unknown.

        What only this stream carried was not executed, so it is requeued for the next session.
        """
        in_doubt = [message for message in self._in_flight if message.in_doubt]
        back = list(self._in_flight)[len(in_doubt) :]
        self._in_flight.clear()
        self._window = 0
        for message in in_doubt:
            message.fail(lambda: OutcomeUnknown(unknown))
        self._requeue(1, back)
        self._withdraw(in_doubt)
        if in_doubt and self._halts:
            self._halt(0)

    def _check_next(self, sequence: int) -> None:
        # Sequence 0 means that the server could not parse the first message.
        if not self._in_flight or sequence not in (0, self._in_flight[0].sequence):
            raise OutOfSequence(f"a server reported a problem with sequence {sequence}, which was not next")

    def _requeue(self, sequence: int, messages: list[Message]) -> None:
        """Put messages that provably are not in the log at the front of the queue, and reuse their sequences.

        Messages already reported as unknown are dropped: they had no effect.
        """
        self._next_sequence = sequence
        for message in reversed(messages):
            if message.pending:
                self._queue.appendleft(message)
        self._withdraw([message for message in messages if not message.pending])

    def _withdraw(self, messages: list[Message]) -> None:
        """Release the window space of messages that are no longer queued or in flight."""
        for message in messages:
            self._commands -= message.commands
            self._bytes -= message.size
        if self._awaiting_space:
            self._admit()
        if self._queue:
            self._wake.set()
        elif not self._in_flight:
            self._settled.set()

    # Deadlines and closing

    def _set_timer(self) -> None:
        """Set the timer for the earliest deadline."""
        if self._timer is None:
            oldest = next((message for message in chain(self._in_flight, self._queue) if message.pending), None)
            if oldest is not None:
                self._timer = self._loop.call_at(oldest.deadline, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        now, expired = self._loop.time(), False
        for message in self._in_flight:
            if message.pending and message.deadline <= now:
                message.fail(lambda: OutcomeUnknown(f"no answer within {self._timeout_s:g} s; {self.last_failure}"))
                expired = True
        unsent = []
        while self._queue and self._queue[0].deadline <= now:
            unsent.append(self._queue.popleft())
            unsent[-1].fail(lambda: Unavailable(f"{self.last_failure}, for {self._timeout_s:g} s"))
        if not self._queue:
            self._gathering = None
        self._withdraw(unsent)
        if self._halts and (expired or unsent):
            self._halt(0)
        self._settled.set()
        self._set_timer()

    def _halt(self, kept: int) -> None:
        """Keep the first messages of the queue, fail the others as halted, and accept nothing more."""
        self.halted = True
        withdrawn = list(self._queue)[kept:]
        self._queue = deque(list(self._queue)[:kept])
        self._shut(withdrawn, Halted)
        self._withdraw(withdrawn)

    def end(self, error: MakeError, unknown: str) -> None:
        """Fail everything: messages in doubt as unknown, all others with the error. Accept nothing until `open`."""
        for message in self._in_flight:
            message.fail((lambda: OutcomeUnknown(unknown)) if message.in_doubt else error)
        withdrawn = [*self._in_flight, *self._queue]
        self._in_flight.clear()
        self._queue.clear()
        self._shut(withdrawn, error)
        self._withdraw(withdrawn)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reject_unsent(self, error: MakeError) -> None:
        """Fail what is neither in flight nor answered. What is in flight waits for a later stream."""
        unsent = list(self._queue)
        self._queue.clear()
        self._gathering = None
        for message in unsent:
            message.fail(error)
        self.reject_awaiting(error)
        self._withdraw(unsent)
        if self._halts and unsent:
            self._halt(0)

    def reject_awaiting(self, error: MakeError) -> None:
        """Fail the calls that wait for space."""
        while self._awaiting_space:
            _, _, admitted = self._awaiting_space.popleft()
            if not admitted.done():
                admitted.set_exception(error())

    def _shut(self, withdrawn: list[Message], error: MakeError) -> None:
        self._gathering = None
        self._window = 0
        for message in withdrawn:
            message.fail(error)
        self.reject_awaiting(error)

    async def drained(self) -> None:
        """Return once no call waits for an answer; at the latest when the last deadline passes."""
        while self._awaiting_space or any(message.pending for message in chain(self._in_flight, self._queue)):
            self._settled.clear()
            await self._settled.wait()

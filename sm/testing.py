"""A test kit for your own machine: it checks, from the outside, the properties that replicas rely on.

    from quire.sm.testing import check_machine

    def test_stock_is_a_machine():
        check_machine("stock:Stock", commands=[["put", "nails", 3], ["take", "nails", 5]], refused=[["steal", "nails"]])

`commands` are commands that a log may hold; the more of the machine they cover, the more is checked. Each check can
also be called alone. A finding is raised as MachineFaulty, which pytest shows as a failed assertion: its text says what
differs, where, and what the usual causes are.

Commands are applied once for each course of time: all at one timestamp, a second or a day after each other, and mixed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import NamedTuple, TypedDict

from quire.log import Kind, PayloadInvalid, encode_frame, encode_records, pack, unpack, walk_frames

from .applier import Applier
from .machine import Context, Contexts, Refused, StateMachine, check_batch, check_one_by_one, limit_state
from .machines.registry import default_initial, load_machine

RESULT_BYTES = 64 << 10  # A session keeps thousands of results; a machine with longer results must pass `result_bytes`.
CHUNK_BYTES = 16 << 20  # Of a snapshot: a node has a whole chunk in memory while it writes it.
BATCH_COMMANDS = 10
LIMITS_BYTES = (1, 16, 256, 4096, 65_536)
"""Limits on the state that a machine with `limit_state` is tried with."""
SURROUNDINGS = (("0", "UTC0"), ("1", "XYZ-9"), ("4242", "ABC+7"))
"""PYTHONHASHSEED and time zone of each process."""
TIMESTAMP = 1_700_000_000_000_000
SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
COURSES = ((0,), (SECOND_US,), (DAY_US,), (0, SECOND_US, 300 * SECOND_US, 40 * DAY_US))
"""How the log's time passes: microseconds from each command to the next, again and again. Each day has its epoch."""
CHILD_DEADLINE_S = 120 * len(COURSES)
SHOWN_CHARACTERS = 200


class MachineFaulty(AssertionError):
    """The machine violates a property that replicas rely on."""


def check_machine(
    spec: str,
    commands: Sequence[object],
    *,
    refused: Sequence[object] = (),
    queries: Sequence[object] = (),
    initial: object = None,
    result_bytes: int = RESULT_BYTES,
) -> None:
    """Run all checks below; `spec` names the machine as `quire serve --machine` does.

    `refused`: commands that its `check` must refuse. `queries`: requests that it answers, besides None. `initial`: the
    initial value; None means the machine's default. `result_bytes`: the longest result it may give, as msgpack.

    Raises:
        MachineFaulty: a check failed; the text says why, and at which command.
        MachineUnknown, InitialInvalid: the machine cannot be loaded or created.
    """
    check_commands(spec, commands, refused=refused, initial=initial)
    check_results(spec, commands, initial=initial, result_bytes=result_bytes)
    check_batches(spec, commands, initial=initial)
    check_queries(spec, commands, queries, initial=initial)
    check_snapshots(spec, commands, initial=initial)
    check_limits(spec, commands, initial=initial)
    check_determinism(spec, commands, queries=queries, initial=initial)


def check_commands(
    spec: str, commands: Sequence[object], *, refused: Sequence[object] = (), initial: object = None
) -> None:
    """`check` passes `commands`, refuses `refused`, changes nothing, and does not depend on the state."""
    machine, log = _made(spec, initial), _Log(_as_logged([*commands, *refused]), COURSES[-1])
    every, before = log.commands, _snapshot(machine)
    verdicts = check_one_by_one(machine, every)
    if _snapshot(machine) != before:
        raise MachineFaulty("check changed the state; it may only read the command")
    known = {position: (code, text) for position, code, text in verdicts}
    for position, (code, text) in known.items():
        what = f"check refused command {position}, {_shown(every[position])}"
        if position < len(commands):
            raise MachineFaulty(f"{what}: {code}: {text}; but it is one of the commands")
        if not (isinstance(code, str) and code and isinstance(text, str)):
            raise MachineFaulty(f"{what} with {code!r}, {text!r}; code and text must be strings")
    for position in range(len(commands), len(every)):
        if position not in known:
            raise MachineFaulty(f"check passed {_shown(every[position])}, which it should refuse")
    if [list(verdict) for verdict in check_batch(machine, every)] != verdicts:
        raise MachineFaulty("check_batch does not refuse what check refuses, command by command")
    for position in range(len(commands)):
        log.apply(machine, position)
    if check_one_by_one(machine, every) != verdicts:
        raise MachineFaulty("check depends on the state; a command that the state forbids must be refused by apply")


def check_results(
    spec: str, commands: Sequence[object], *, initial: object = None, result_bytes: int = RESULT_BYTES
) -> None:
    """Results are bounded msgpack values that no later command changes; a refusal by `apply` changes nothing."""
    for log in _logs(commands):
        machine = _made(spec, initial)
        results: list[tuple[object, bytes]] = []
        for position, command in enumerate(log.commands):
            before, given, at = _snapshot(machine), pack(command), log.at(position)
            result = log.apply(machine, position)
            if pack(command) != given:
                raise MachineFaulty(f"apply changed the command it was given: {at}")
            if isinstance(result, Refused):
                if _snapshot(machine) != before:
                    text = "refused a command after it changed the state; raise Refused before any change"
                    raise MachineFaulty(f"apply {text}: {at}")
                result = [result.code, result.text]
            packed = _packed(result, f"the result of {at}")
            if len(packed) > result_bytes:
                size = f"{len(packed)} bytes as msgpack, above {result_bytes}"
                raise MachineFaulty(f"the result of {at} has {size}; sessions keep results: return less")
            results.append((result, packed))
        for position, (result, packed) in enumerate(results):
            if pack(result) != packed:
                what = f"the result of {log.at(position)} was changed by a later command"
                raise MachineFaulty(f"{what}; return a copy of the state")


def check_batches(spec: str, commands: Sequence[object], *, initial: object = None) -> None:
    """`apply_batch`, if the machine has one, does what `apply` does command by command."""
    for log in _logs(commands):
        logged = log.commands
        for size in (1, 3, max(1, len(logged))):
            plain, batching = _made(spec, initial), _made(spec, initial)
            apply_batch: Callable[..., list[object]] | None = getattr(batching, "apply_batch", None)
            if apply_batch is None:
                return
            for start in range(0, len(logged), size):
                batch = logged[start : start + size]
                contexts = list(Contexts(start, len(batch), 1, log.timestamp(start)))  # Of one frame, so of one time.
                expected = [_reply(log.apply(plain, start + at, context)) for at, context in enumerate(contexts)]
                given = [_reply(result) for result in apply_batch(batch, contexts)]
                if len(given) != len(batch):
                    raise MachineFaulty(f"apply_batch gave {len(given)} results for {len(batch)} commands")
                for at, (one, other) in enumerate(zip(given, expected, strict=True), start):
                    if one != other:
                        said = f"{_shown(one)}, and apply {_shown(other)}"
                        raise MachineFaulty(f"apply_batch answered {log.at(at)} with {said}")
                if _snapshot(plain) != _snapshot(batching):
                    last = log.at(start + len(batch) - 1)
                    raise MachineFaulty(f"apply_batch led to a different state than apply, after {last}")


def check_queries(spec: str, commands: Sequence[object], queries: Sequence[object], *, initial: object = None) -> None:
    """`query` answers None and `queries` with msgpack values and changes nothing; it refuses the same once restored."""
    for log in _logs(commands):
        machine, restored = _made(spec, initial), _made(spec, initial)
        for position in range(len(log.commands)):
            log.apply(machine, position)
        before = _snapshot(machine)
        restored.restore([before])
        for request in (None, *_as_logged(queries)):
            refusal = _refusal(machine, request)
            if _snapshot(machine) != before:
                raise MachineFaulty(f"query changed the state at the request {_shown(request)}; it may only read")
            if (other := _refusal(restored, request)) != refusal:
                said = f"{_verdict(other)} by a machine restored after all commands, and {_verdict(refusal)}"
                raise MachineFaulty(f"the query {_shown(request)} was {said} by the original")


def check_snapshots(spec: str, commands: Sequence[object], *, initial: object = None) -> None:
    """A machine restored from a snapshot, in chunks of any size, continues like the original."""
    for log in _logs(commands):
        count = len(log.commands)
        used = _made(spec, initial)
        for position in range(count):
            log.apply(used, position)
        for split in sorted({0, count // 2, count}):
            original, restored = _made(spec, initial), _made(spec, initial)
            for position in range(split):
                log.apply(original, position)
            snapshot, where = _snapshot(original), f"a machine restored after {split} commands"
            for machine, size in ((restored, 7), (used, max(1, len(snapshot)))):
                machine.restore(snapshot[start : start + size] for start in range(0, len(snapshot), size))
                if _snapshot(machine) != snapshot:
                    what = f"{where} gives a different snapshot"
                    raise MachineFaulty(f"{what}; does it contain the whole state, in a fixed order?")
            for position in range(split, count):
                one, other = (_reply(log.apply(machine, position)) for machine in (restored, original))
                if one != other:
                    said = f"{_shown(one)}, and the original {_shown(other)}"
                    raise MachineFaulty(f"{where} answered {log.at(position)} with {said}")


def check_limits(spec: str, commands: Sequence[object], *, initial: object = None) -> None:
    """A machine with `limit_state` refuses before any change, and the same once it is restored."""
    if getattr(_made(spec, initial), "limit_state", None) is None:
        return
    for limit_bytes in LIMITS_BYTES:
        for log in _logs(commands):
            _check_limit(spec, log, initial, limit_bytes)


def _check_limit(spec: str, log: "_Log", initial: object, limit_bytes: int) -> None:
    original, restored = _limited(spec, initial, limit_bytes), _limited(spec, initial, limit_bytes)
    where, split = f"with {limit_bytes} bytes for its state", len(log.commands) // 2
    for position in range(len(log.commands)):
        before = _snapshot(original)
        if position == split:
            restored.restore([before])
        reply = log.apply(original, position)
        if isinstance(reply, Refused) and _snapshot(original) != before:
            raise MachineFaulty(f"{where}, apply refused a command after a change: {log.at(position)}")
        if position >= split and (other := _reply(log.apply(restored, position))) != _reply(reply):
            said = f"{_shown(other)}, and the original {_shown(_reply(reply))}"
            what = f"{where}, a machine restored after {split} commands answered {log.at(position)}"
            raise MachineFaulty(f"{what} with {said}")


def check_determinism(
    spec: str, commands: Sequence[object], *, queries: Sequence[object] = (), initial: object = None
) -> None:
    """Processes with different hash seeds and time zones give the same results, digests, snapshots and refusals."""
    logs, requests = _logs(commands), [None, *_as_logged(queries)]
    runs = [_run_child(spec, logs[0].commands, requests, initial, *surroundings) for surroundings in SURROUNDINGS]
    for run in runs[1:]:
        for log, one, other in zip(logs, runs[0], run, strict=True):
            for position, (first, second) in enumerate(zip(one["replies"], other["replies"], strict=True)):
                if first != second:
                    told = (_shown(unpack(bytes.fromhex(packed), ext=True)) for packed in (first, second))
                    said = "{} in one process and {} in another".format(*told)
                    raise MachineFaulty(f"{log.at(position)} was answered {said}; {_REASONS}")
            if one["digests"] != other["digests"]:
                raise MachineFaulty(f"equal results gave unequal digests; {_REASONS}")
            if one["snapshot"] != other["snapshot"]:
                raise MachineFaulty(f"processes that gave equal results wrote unequal snapshots; {_REASONS}")
            for request, *refusals in zip(requests, one["refusals"], other["refusals"], strict=True):
                if refusals[0] != refusals[1]:
                    said = "{} in one process and {} in another".format(*map(_verdict, refusals))
                    raise MachineFaulty(f"the query {_shown(request)} was {said}; {_REASONS}")


_REASONS = "look for a clock, a random number, the order of a set, hash() or id(), the environment, a float's sum"


class _Outcome(TypedDict):
    """What a child process found in a course of time: msgpack and digests in hexadecimal, and what queries refused."""

    replies: list[str]
    digests: list[str]
    snapshot: str
    refusals: list[list[str] | None]


def _run_child(
    spec: str, commands: list[object], requests: list[object], initial: object, hash_seed: str, time_zone: str
) -> list[_Outcome]:
    """An outcome for each course of time."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": time_zone}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    program = f"from {__name__} import run_child; run_child()"
    given = pack([spec, commands, requests, initial]).hex()
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=given,
        env=environment,
        capture_output=True,
        text=True,
        timeout=CHILD_DEADLINE_S,
        check=False,
    )
    if ran.returncode:
        last_words = (ran.stderr.strip() or "it wrote nothing to stderr").splitlines()[-1]
        raise MachineFaulty(f"a child process could not run {spec}: {last_words}")
    outcomes: list[_Outcome] = json.loads(ran.stdout.splitlines()[-1])
    return outcomes


def run_child() -> None:
    """The child process of `check_determinism`: apply the commands from stdin, write the outcomes to stdout."""
    given = unpack(bytes.fromhex(sys.stdin.read()), ext=True)
    match given:
        case [str(spec), list(commands), list(requests), initial]:
            pass
        case _:
            raise ValueError(f"stdin holds no [machine, commands, requests, initial]: {given!r:.40}")
    outcomes = [_outcome(_made(spec, initial), log, requests) for log in _logs(commands)]
    sys.stdout.write("\n" + json.dumps(outcomes) + "\n")


def _outcome(machine: StateMachine, log: "_Log", requests: list[object]) -> _Outcome:
    applier = Applier(machine)
    replies: list[str] = []
    digests: list[str] = []
    for raw in _frames(log):
        for frame in walk_frames(raw):
            applied = applier.apply(frame)
            refused = {position: [code, text] for position, code, text in applied.refused}
            replies += [pack(refused.get(position, result)).hex() for position, result in enumerate(applied.results)]
            digests.append(applier.digest.hex())
    snapshot = sha256(_snapshot(machine)).hexdigest()
    refusals = [_refusal(machine, request) for request in requests]
    return {"replies": replies, "digests": digests, "snapshot": snapshot, "refusals": refusals}


def _frames(log: "_Log") -> Iterator[bytes]:
    """Frames of several commands while time stands still, as they share one timestamp, and otherwise of one."""
    prev_crc32c, size = 0, 1 if any(log.steps) else BATCH_COMMANDS
    for start in range(0, len(log.commands), size):
        batch = log.commands[start : start + size]
        raw = encode_frame(
            index=start,
            epoch=log.epoch(start),
            timestamp=log.timestamp(start),
            count=len(batch),
            prev_crc32c=prev_crc32c,
            kind=Kind.RECORDS,
            payload=encode_records(batch),
        )
        [frame] = walk_frames(raw)
        prev_crc32c = frame.header.crc32c
        yield raw


class _Log(NamedTuple):
    """Commands as a node reads them from its log, and the microseconds from each to the next, again and again."""

    commands: list[object]
    steps: tuple[int, ...]

    def timestamp(self, position: int) -> int:
        """When a command was written: microseconds since 1970."""
        rounds, rest = divmod(position, len(self.steps))
        return TIMESTAMP + rounds * sum(self.steps) + sum(self.steps[:rest])

    def epoch(self, position: int) -> int:
        """The epoch of the leader that wrote a command."""
        return 1 + (self.timestamp(position) - TIMESTAMP) // DAY_US

    def context(self, position: int) -> Context:
        """What a command is applied with."""
        return Context(position, self.epoch(position), self.timestamp(position))

    def at(self, position: int) -> str:
        """A command, for a finding."""
        later = timedelta(microseconds=self.timestamp(position) - TIMESTAMP)
        return f"command {position}, {_shown(self.commands[position])}" + (
            f" ({later} after the first)" if later else ""
        )

    def apply(self, machine: StateMachine, position: int, context: Context | None = None) -> object:
        """The result or the Refused. Raises MachineFaulty."""
        try:
            return machine.apply(self.commands[position], context or self.context(position))
        except Refused as refusal:
            return refusal
        except Exception as error:
            what = f"apply raised {type(error).__name__}: {error} at {self.at(position)}"
            raise MachineFaulty(
                f"{what}; a replica would stop here permanently: refuse the command, in check if possible"
            ) from error


def _logs(commands: Sequence[object]) -> list[_Log]:
    """A log for each course of time; they share no command, as a machine may keep what it is given."""
    return [_Log(_as_logged(commands), steps) for steps in COURSES]


def _made(spec: str, initial: object) -> StateMachine:
    machine = load_machine(spec)
    return machine(default_initial(machine) if initial is None else initial)


def _limited(spec: str, initial: object, limit_bytes: int) -> StateMachine:
    machine = _made(spec, initial)
    limit_state(machine, {"state_bytes": limit_bytes})
    return machine


def _as_logged(commands: Sequence[object]) -> list[object]:
    """The commands as a node reads them from its log: tuples become lists, and nothing is shared."""
    logged: list[object] = []
    for position, command in enumerate(commands):
        try:
            logged.append(unpack(pack(command), ext=True))
        except PayloadInvalid as error:
            raise MachineFaulty(
                f"command {position} cannot be in a log, it {error.reason}: {_shown(command)}"
            ) from error
    return logged


def _refusal(machine: StateMachine, request: object) -> list[str] | None:
    """[code, text] of a refused query; None if it is answered, as answers may differ. Raises MachineFaulty."""
    what = f"the query {_shown(request)}"
    try:
        answer = machine.query(request)
    except Refused as refusal:
        code, text = refusal.code, refusal.text
        if not (isinstance(code, str) and code and isinstance(text, str)):
            raise MachineFaulty(f"{what} was refused with {code!r}, {text!r}; code and text must be strings") from None
        return [code, text]
    except Exception as error:
        said = f"query raised {type(error).__name__}: {error} at the request {_shown(request)}"
        raise MachineFaulty(f"{said}; raise Refused for a request without an answer") from error
    _packed(answer, f"the answer to {what}")
    return None


def _verdict(refusal: list[str] | None) -> str:
    return "answered" if refusal is None else "refused with {}: {}".format(*refusal)


def _reply(result: object) -> object:
    return [result.code, result.text] if isinstance(result, Refused) else unpack(pack(result), ext=True)


def _snapshot(machine: StateMachine) -> bytes:
    chunks = list(machine.snapshot())
    for at, chunk in enumerate(chunks):
        if not isinstance(chunk, bytes):
            raise MachineFaulty(f"snapshot must yield bytes; its chunk {at} is a {type(chunk).__name__}")
        if len(chunk) > CHUNK_BYTES:
            raise MachineFaulty(
                f"the snapshot's chunk {at} has {len(chunk)} bytes, above {CHUNK_BYTES}; yield smaller chunks"
            )
    return b"".join(chunks)


def _packed(value: object, what: str) -> bytes:
    try:
        packed = pack(value)
        unpack(packed, ext=True)
    except PayloadInvalid as error:
        raise MachineFaulty(f"{what} is not a msgpack value, it {error.reason}: {_shown(value)}") from error
    return packed


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."

"""A test kit for your own machine: it checks, from the outside, the properties that replicas rely on.

    from quire.sm.testing import check_machine

    def test_stock_is_a_machine():
        check_machine("stock:Stock", commands=[["put", "nails", 3], ["take", "nails", 5]], refused=[["steal", "nails"]])

`commands` are commands that a log may hold; the more of the machine they cover, the more is checked. Each check can
also be called alone. A finding is raised as MachineFaulty, which pytest shows as a failed assertion: its text says what
differs, where, and what the usual causes are.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import TypedDict

from quire.log import Kind, PayloadInvalid, encode_frame, encode_records, pack, unpack, walk_frames

from .applier import Applier
from .machine import Context, Refused, StateMachine, check_batch, check_one_by_one, limit_state
from .machines.registry import default_initial, load_machine

RESULT_BYTES = 64 << 10  # A session keeps thousands of results; a machine with longer results must pass `result_bytes`.
CHUNK_BYTES = 16 << 20  # Of a snapshot: a node has a whole chunk in memory while it writes it.
BATCH_COMMANDS = 10
LIMITS_BYTES = (1, 16, 256, 4096, 65_536)
"""Limits on the state that a machine with `limit_state` is tried with."""
SURROUNDINGS = (("0", "UTC0"), ("1", "XYZ-9"), ("4242", "ABC+7"))
"""PYTHONHASHSEED and time zone of each process."""
CHILD_DEADLINE_S = 120
TIMESTAMP = 1_700_000_000_000_000
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
    check_determinism(spec, commands, initial=initial)


def check_commands(
    spec: str, commands: Sequence[object], *, refused: Sequence[object] = (), initial: object = None
) -> None:
    """`check` passes `commands`, refuses `refused`, changes nothing, and does not depend on the state."""
    machine, every = _made(spec, initial), _as_logged([*commands, *refused])
    before = _snapshot(machine)
    verdicts = check_one_by_one(machine, every)
    if _snapshot(machine) != before:
        raise MachineFaulty("check changed the state; it may only read the command")
    known = {position: (code, text) for position, code, text in verdicts}
    for position, (code, text) in known.items():
        if position < len(commands):
            raise MachineFaulty(f"check refused {_at(position, every)}: {code}: {text}; but it is one of the commands")
        if not (isinstance(code, str) and code and isinstance(text, str)):
            raise MachineFaulty(
                f"check refused {_at(position, every)} with {code!r}, {text!r}; code and text must be strings"
            )
    for position in range(len(commands), len(every)):
        if position not in known:
            raise MachineFaulty(f"check passed {_shown(every[position])}, which it should refuse")
    if [list(verdict) for verdict in check_batch(machine, every)] != verdicts:
        raise MachineFaulty("check_batch does not refuse what check refuses, command by command")
    for position, command in enumerate(every[: len(commands)]):
        _apply(machine, command, position)
    if check_one_by_one(machine, every) != verdicts:
        raise MachineFaulty("check depends on the state; a command that the state forbids must be refused by apply")


def check_results(
    spec: str, commands: Sequence[object], *, initial: object = None, result_bytes: int = RESULT_BYTES
) -> None:
    """Results are bounded msgpack values that no later command changes; a refusal by `apply` changes nothing."""
    machine, logged = _made(spec, initial), _as_logged(commands)
    results: list[tuple[object, bytes]] = []
    for position, command in enumerate(logged):
        before, given = _snapshot(machine), pack(command)
        result = _apply(machine, command, position)
        if pack(command) != given:
            raise MachineFaulty(f"apply changed the command it was given: {_at(position, logged)}")
        if isinstance(result, Refused):
            if _snapshot(machine) != before:
                text = "refused a command after it changed the state; raise Refused before any change"
                raise MachineFaulty(f"apply {text}: {_at(position, logged)}")
            result = [result.code, result.text]
        packed = _packed(result, f"the result of {_at(position, logged)}")
        if len(packed) > result_bytes:
            size = f"{len(packed)} bytes as msgpack, above {result_bytes}"
            raise MachineFaulty(f"the result of {_at(position, logged)} has {size}; sessions keep results: return less")
        results.append((result, packed))
    for position, (result, packed) in enumerate(results):
        if pack(result) != packed:
            raise MachineFaulty(
                f"the result of {_at(position, logged)} was changed by a later command; return a copy of the state"
            )


def check_batches(spec: str, commands: Sequence[object], *, initial: object = None) -> None:
    """`apply_batch`, if the machine has one, does what `apply` does command by command."""
    logged = _as_logged(commands)
    for size in (1, 3, max(1, len(logged))):
        plain, batching = _made(spec, initial), _made(spec, initial)
        apply_batch: Callable[..., list[object]] | None = getattr(batching, "apply_batch", None)
        if apply_batch is None:
            return
        for start in range(0, len(logged), size):
            batch = logged[start : start + size]
            contexts = [_context(start + at) for at in range(len(batch))]
            expected = [_reply(_apply(plain, command, start + at)) for at, command in enumerate(batch)]
            given = [_reply(result) for result in apply_batch(batch, contexts)]
            if len(given) != len(batch):
                raise MachineFaulty(f"apply_batch gave {len(given)} results for {len(batch)} commands")
            for at, (one, other) in enumerate(zip(given, expected, strict=True), start):
                if one != other:
                    said = f"{_shown(one)}, and apply {_shown(other)}"
                    raise MachineFaulty(f"apply_batch answered {_at(at, logged)} with {said}")
            if _snapshot(plain) != _snapshot(batching):
                last = start + len(batch) - 1
                raise MachineFaulty(f"apply_batch led to a different state than apply, after {_at(last, logged)}")


def check_queries(spec: str, commands: Sequence[object], queries: Sequence[object], *, initial: object = None) -> None:
    """`query` answers None and `queries` with msgpack values, and changes nothing."""
    machine = _made(spec, initial)
    for position, command in enumerate(_as_logged(commands)):
        _apply(machine, command, position)
    before = _snapshot(machine)
    for request in (None, *_as_logged(queries)):
        _packed(machine.query(request), f"the answer to the query {_shown(request)}")
        if _snapshot(machine) != before:
            raise MachineFaulty(f"query changed the state at the request {_shown(request)}; it may only read")


def check_snapshots(spec: str, commands: Sequence[object], *, initial: object = None) -> None:
    """A machine restored from a snapshot, in chunks of any size, continues like the original."""
    logged = _as_logged(commands)
    used = _made(spec, initial)
    for position, command in enumerate(logged):
        _apply(used, command, position)
    for split in sorted({0, len(logged) // 2, len(logged)}):
        original, restored = _made(spec, initial), _made(spec, initial)
        for position, command in enumerate(logged[:split]):
            _apply(original, command, position)
        snapshot, where = _snapshot(original), f"a machine restored after {split} commands"
        for machine, size in ((restored, 7), (used, max(1, len(snapshot)))):
            machine.restore(snapshot[start : start + size] for start in range(0, len(snapshot), size))
            if _snapshot(machine) != snapshot:
                raise MachineFaulty(
                    f"{where} gives a different snapshot; does it contain the whole state, in a fixed order?"
                )
        for position, command in enumerate(logged[split:], split):
            one, other = (_reply(_apply(machine, command, position)) for machine in (restored, original))
            if one != other:
                said = f"{_shown(one)}, and the original {_shown(other)}"
                raise MachineFaulty(f"{where} answered {_at(position, logged)} with {said}")


def check_limits(spec: str, commands: Sequence[object], *, initial: object = None) -> None:
    """A machine with `limit_state` refuses before any change, and the same once it is restored."""
    logged = _as_logged(commands)
    split = len(logged) // 2
    if getattr(_made(spec, initial), "limit_state", None) is None:
        return
    for limit_bytes in LIMITS_BYTES:
        original, restored = _limited(spec, initial, limit_bytes), _limited(spec, initial, limit_bytes)
        where = f"with {limit_bytes} bytes for its state"
        for position, command in enumerate(logged):
            before = _snapshot(original)
            if position == split:
                restored.restore([before])
            reply = _apply(original, command, position)
            if isinstance(reply, Refused) and _snapshot(original) != before:
                raise MachineFaulty(f"{where}, apply refused a command after a change: {_at(position, logged)}")
            if position >= split and (other := _reply(_apply(restored, command, position))) != _reply(reply):
                said = f"{_shown(other)}, and the original {_shown(_reply(reply))}"
                raise MachineFaulty(
                    f"{where}, a machine restored after {split} commands answered {_at(position, logged)} with {said}"
                )


def check_determinism(spec: str, commands: Sequence[object], *, initial: object = None) -> None:
    """Processes with different hash seeds and time zones give the same results, digests and snapshot."""
    logged = _as_logged(commands)
    runs = [_run_child(spec, logged, initial, *surroundings) for surroundings in SURROUNDINGS]
    for other in runs[1:]:
        for position, (one, another) in enumerate(zip(runs[0]["replies"], other["replies"], strict=True)):
            if one != another:
                first, second = (_shown(unpack(bytes.fromhex(packed), ext=True)) for packed in (one, another))
                said = f"{first} in one process and {second} in another"
                raise MachineFaulty(f"{_at(position, logged)} was answered {said}; {_REASONS}")
        if runs[0]["digests"] != other["digests"]:
            raise MachineFaulty(f"equal results gave unequal digests; {_REASONS}")
        if runs[0]["snapshot"] != other["snapshot"]:
            raise MachineFaulty(f"processes that gave equal results wrote unequal snapshots; {_REASONS}")


_REASONS = "look for a clock, a random number, the order of a set, hash() or id(), the environment, a float's sum"


class _Outcome(TypedDict):
    """What a child process found: results and digests in hexadecimal, and the hash of the snapshot."""

    replies: list[str]
    digests: list[str]
    snapshot: str


def _run_child(spec: str, commands: list[object], initial: object, hash_seed: str, time_zone: str) -> _Outcome:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": time_zone}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    program = f"from {__name__} import run_child; run_child()"
    given = pack([spec, commands, initial]).hex()
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
    document: _Outcome = json.loads(ran.stdout.splitlines()[-1])
    return document


def run_child() -> None:
    """The child process of `check_determinism`: apply the commands from stdin, write the outcome to stdout."""
    given = unpack(bytes.fromhex(sys.stdin.read()), ext=True)
    match given:
        case [str(spec), list(commands), initial]:
            pass
        case _:
            raise ValueError(f"stdin holds no [machine, commands, initial]: {given!r:.40}")
    machine = _made(spec, initial)
    applier = Applier(machine)
    replies: list[str] = []
    digests: list[str] = []
    for raw in _frames(commands):
        for frame in walk_frames(raw):
            applied = applier.apply(frame)
            refused = {position: [code, text] for position, code, text in applied.refused}
            replies += [pack(refused.get(position, result)).hex() for position, result in enumerate(applied.results)]
            digests.append(applier.digest.hex())
    document = {"replies": replies, "digests": digests, "snapshot": sha256(_snapshot(machine)).hexdigest()}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


def _frames(commands: list[object]) -> Iterator[bytes]:
    prev_crc32c = 0
    for start in range(0, len(commands), BATCH_COMMANDS):
        batch = commands[start : start + BATCH_COMMANDS]
        raw = encode_frame(
            index=start,
            epoch=1,
            timestamp=TIMESTAMP,
            count=len(batch),
            prev_crc32c=prev_crc32c,
            kind=Kind.RECORDS,
            payload=encode_records(batch),
        )
        [frame] = walk_frames(raw)
        prev_crc32c = frame.header.crc32c
        yield raw


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


def _context(position: int) -> Context:
    return Context(position, 1, TIMESTAMP)


def _apply(machine: StateMachine, command: object, position: int) -> object:
    """The result or the Refused. Raises MachineFaulty."""
    try:
        return machine.apply(command, _context(position))
    except Refused as refusal:
        return refusal
    except Exception as error:
        what = f"apply raised {type(error).__name__}: {error} at command {position}, {_shown(command)}"
        raise MachineFaulty(
            f"{what}; a replica would stop here permanently: refuse the command, in check if possible"
        ) from error


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


def _at(position: int, commands: Sequence[object]) -> str:
    return f"command {position}, {_shown(commands[position])}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."

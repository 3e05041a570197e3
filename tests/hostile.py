"""What somebody may make of a file that a program will read, and a deadline for whoever reads it."""

import json
import os
import random
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.malformed.changed import changes_at, fields

DEADLINE_S = 120
SPARSE_BYTES = 1 << 40
TEXTS = ("NaN", "Infinity", "1e999", "9" * 5_000, "[" * 100_000 + "]" * 100_000, '"\\ud800"', "-0.0", "01")
"""What stands for a value in JSON, or does not."""


@contextmanager
def in_time(what: str) -> Generator[None]:
    """Fail if the block waits, as for a pipe's writer."""

    def late(*_: object) -> None:
        raise AssertionError(f"{what}: no end within {DEADLINE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def as_folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def as_pipe(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def as_device(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def as_loop(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to(path)


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def emptied(path: Path, _: random.Random) -> None:
    os.truncate(path, 0)


def huge(path: Path, _: random.Random) -> None:
    os.truncate(path, SPARSE_BYTES)


def flipped(path: Path, chance: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    raw[chance.randrange(len(raw) - 1)] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


Change = Callable[[Path, random.Random], None]
CHANGES: tuple[Change, ...] = (as_folder, as_pipe, as_device, as_loop, cut, emptied, huge, flipped)


def changed_json(document: dict[str, Any], chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """(what, JSON): the document with each change of each field that JSON can express, in whatever depth."""
    for key, given in document.items():
        rest = {other: each for other, each in document.items() if other != key}
        for name, path in fields([None, given], [(key, [])]):
            for how, row in changes_at([None, given], path, chance):
                if len(row) > 2:
                    continue  # A map has no value twice.
                try:
                    text = json.dumps(rest | dict.fromkeys([key][: len(row) - 1], row[-1]))
                except TypeError:
                    continue  # Bytes, and what only msgpack has.
                yield f"{name}: {how}", text.encode()
        text = json.dumps(document | {key: "HERE"})
        for value in TEXTS:
            yield f"{key}: {value:.20}", text.replace('"HERE"', value, 1).encode()

"""Shared by the commands that work on a node's data directory while the node is stopped."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ...errors import ClusterError
from ..connection import fail_usage
from ..output import Exit, complain, interruptible

if TYPE_CHECKING:
    from quire.log import Directory, LogOptions


@contextmanager
def locked(data_dir: Path, *, create: bool = False) -> "Generator[Directory]":
    """The directory, locked. If it cannot be used, print why and exit."""
    from quire.log import FileDirectory, LogError, LogLocked

    if data_dir.is_file() or not (create or data_dir.exists()):
        what = "is a file" if data_dir.exists() else "does not exist"
        fail_usage(f"{data_dir} {what}; give the --data-dir of a node")
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        directory = FileDirectory(data_dir)
        directory.lock()
    except LogLocked:
        complain(f"{data_dir} is in use; stop that node first")
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        _fail(data_dir, error)
    try:
        with interruptible():
            yield directory
    except (ClusterError, LogError) as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        _fail(data_dir, error)
    finally:
        directory.unlock()


def _fail(data_dir: Path, error: OSError) -> NoReturn:
    complain(f"{error.filename or data_dir} cannot be used: {(error.strerror or str(error)).lower()}")
    raise typer.Exit(Exit.FAILED) from None


def options_for(max_frame_bytes: int) -> "LogOptions":
    """How the log of a cluster with this limit is opened."""
    from quire.log import LogOptions, overflow_of

    segment_bytes = LogOptions().segment_bytes
    overflow = overflow_of(segment_bytes, max_frame_bytes)
    return LogOptions(segment_bytes=segment_bytes, segment_overflow_bytes=overflow, max_frame_bytes=max_frame_bytes)

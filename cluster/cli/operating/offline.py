"""Shared by the commands that work on a node's data directory while the node is stopped."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...errors import ClusterError
from ..connection import fail_usage
from ..output import Exit, complain

if TYPE_CHECKING:
    from quire.log import Directory, LogOptions


@contextmanager
def locked(data_dir: Path, *, create: bool = False) -> "Generator[Directory]":
    """The directory, locked. If it cannot be used, print why and exit."""
    from quire.log import FileDirectory, LogError, LogLocked

    if create and not data_dir.exists():
        data_dir.mkdir(parents=True)
    if not data_dir.is_dir():
        what = "is a file" if data_dir.exists() else "does not exist"
        fail_usage(f"{data_dir} {what}; give the --data-dir of a node")
    directory = FileDirectory(data_dir)
    try:
        directory.lock()
    except LogLocked:
        complain(f"{data_dir} is in use; stop that node first")
        raise typer.Exit(Exit.FAILED) from None
    try:
        yield directory
    except (ClusterError, LogError) as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        complain(f"{error.filename or data_dir} cannot be used: {(error.strerror or str(error)).lower()}")
        raise typer.Exit(Exit.FAILED) from None
    finally:
        directory.unlock()


def options_for(max_frame_bytes: int) -> "LogOptions":
    """How the log of a cluster with this limit is opened."""
    from quire.log import LogOptions, overflow_of

    segment_bytes = LogOptions().segment_bytes
    overflow = overflow_of(segment_bytes, max_frame_bytes)
    return LogOptions(segment_bytes=segment_bytes, segment_overflow_bytes=overflow, max_frame_bytes=max_frame_bytes)

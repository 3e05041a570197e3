"""What is told at start about the file system of a data directory."""

import os
from pathlib import Path

import structlog

from quire.log.files import HELD_OPEN

logger = structlog.get_logger(__name__)

SHOWN = 5


def note_held_open(path: str | Path) -> None:
    """Log the files below `path` that were removed while another program held them open; they are ignored."""
    found = [
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path)
        for name in names
        if name.startswith(HELD_OPEN)
    ]
    if found:
        logger.info(
            "files that another program held open when they were removed are ignored; they go when it closes them",
            count=len(found),
            files=sorted(found)[:SHOWN],
        )

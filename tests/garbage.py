"""What only the garbage collector can free."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def garbage() -> Generator[list[Any], None, None]:
    """Afterwards, what a collection found that had not been freed before."""
    gc.collect()
    gc.disable()
    found: list[Any] = []
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()

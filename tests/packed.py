"""What a test reads of msgpack whose shape it knows."""

from typing import Any

from quire.log import unpack


def unpacked(buffer: bytes | bytearray | memoryview) -> Any:
    """Return the one value in `buffer`."""
    return unpack(buffer)

"""Whole frames out of shipments: frames span messages, and only whole ones count (rule 8)."""

from typing import NamedTuple

from quire.log import HEADER_BYTES, FrameInvalid, UnknownVersion, decode_header

from .wire import BadMessage


class Assembled(NamedTuple):
    """Whole frames back to back, and the epoch of the last of them (0 if none). Payloads are not verified here."""

    raw: bytes
    last_epoch: int


class FrameAssembler:
    """Collects a stream's bytes; gives whole frames. Holds less than one frame of `max_frame_bytes` between calls."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._lacks = 0

    def feed(self, data: memoryview) -> Assembled:
        """Add a shipment's bytes; return what became whole.

        Raises:
            BadMessage: bytes that are no frame, or a frame above the limit.
        """
        if not self._buffer:
            end, epoch = self._whole(data)
            self._buffer += data[end:]
            return Assembled(bytes(data[:end]), epoch)
        self._buffer += data
        if len(self._buffer) < self._lacks:
            return Assembled(b"", 0)
        end, epoch = self._whole(memoryview(self._buffer))
        whole = bytes(memoryview(self._buffer)[:end])
        del self._buffer[:end]
        return Assembled(whole, epoch)

    def _whole(self, view: memoryview) -> tuple[int, int]:
        """Where the whole frames of `view` end, and the last one's epoch; notes how long the next one is."""
        offset, epoch, self._lacks = 0, 0, 0
        while len(view) - offset >= HEADER_BYTES:
            try:
                header = decode_header(view, offset)
            except (FrameInvalid, UnknownVersion) as error:
                raise BadMessage(f"no frame at byte {offset} of a shipment: {error}") from error
            if header.size > self._max_frame_bytes:
                raise BadMessage(f"a frame of {header.size} bytes, above the limit of {self._max_frame_bytes}")
            if offset + header.size > len(view):
                self._lacks = header.size
                break
            offset, epoch = offset + header.size, header.epoch
        return offset, epoch

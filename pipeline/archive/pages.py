"""The pages of a column in a Parquet file, by their headers, of which Arrow shows nothing.

The footer says what a column takes once it is read, but Arrow goes by the pages: a dictionary of one long value, and
a number for each row, take gigabytes from a file of 4 KB. The archive's writer makes no dictionary of the columns that
are read, so each value is in a page as its length and its bytes, and the pages' sizes are a bound for the memory.

A header is a struct in Thrift's compact protocol: each field is a byte of (distance from the last field's id, type), an
id if that distance is 0, and the value.
"""

from __future__ import annotations

from typing import Any, BinaryIO, NamedTuple

import pyarrow.parquet as pq

COMPRESSION = "ZSTD"
MAX_HEAD_BYTES = 1 << 10
"""The writer makes statistics of none of these columns, so a header has some 30 bytes."""
LENGTH_BYTES = 4
"""Before each value in a page."""

_TYPE, _SIZE, _COMPRESSED_SIZE, _OF_DATA = 1, 2, 3, 5  # Fields of a header.
_ROWS, _ENCODING = 1, 2  # Fields of a header's _OF_DATA.
_DATA_PAGE, _PLAIN = 0, 0
_BOOLEANS, _I8, _INTEGERS, _BINARY, _STRUCT = (1, 2), 3, (4, 5, 6), 8, 12  # Types of fields.
_MAX_DEPTH = 4


class Pages(NamedTuple):
    """What the pages of a column hold: bytes, uncompressed, and rows."""

    size: int
    rows: int


def pages_of(file: BinaryIO, column: pq.ColumnChunkMetaData) -> Pages:
    """The pages of one column of one row group.

    Raises:
        ValueError: they are not as the archive's writer makes them.
    """
    if column.compression != COMPRESSION or column.has_dictionary_page:
        raise ValueError("a column is compressed or encoded in another way than an archive's")
    place, size, rows = column.data_page_offset, 0, 0
    end = place + column.total_compressed_size
    while place < end:
        file.seek(place)
        head = _Head(file.read(MAX_HEAD_BYTES))
        try:
            fields = head.struct()
            if fields[_TYPE] != _DATA_PAGE or fields[_OF_DATA][_ENCODING] != _PLAIN:
                raise ValueError("a page is encoded in another way than an archive's")
            page = Pages(fields[_SIZE], fields[_OF_DATA][_ROWS])
            place += head.place + fields[_COMPRESSED_SIZE]
            if min(page) < 0 or fields[_COMPRESSED_SIZE] < 0 or page.rows * LENGTH_BYTES > page.size:
                raise ValueError("a page has an impossible size")
        except (IndexError, KeyError, TypeError) as error:  # A struct where a number belongs is a TypeError.
            raise ValueError("the header of a page cannot be read") from error
        size, rows = size + page.size, rows + page.rows
    if place != end or rows != column.num_values:
        raise ValueError("the pages of a column are not those of its footer")
    return Pages(size, rows)


class _Head:
    """Reads a struct in Thrift's compact protocol. Raises IndexError at its end, ValueError for what no header has."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.place = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields by their ids; those that are neither numbers nor structs are left out."""
        if depth > _MAX_DEPTH:
            raise ValueError("the header of a page is nested too deep")
        fields, last = dict[int, Any](), 0
        while head := self._byte():
            distance, kind = head >> 4, head & 0x0F
            last = last + distance if distance else self._integer()
            if kind in _INTEGERS:
                fields[last] = self._integer()
            elif kind == _STRUCT:
                fields[last] = self.struct(depth + 1)
            elif kind == _BINARY:
                self.place += self._varint()
            elif kind == _I8:
                self._byte()
            elif kind not in _BOOLEANS:
                raise ValueError("the header of a page has a field of an unknown type")
        return fields

    def _byte(self) -> int:
        self.place += 1
        return self._raw[self.place - 1]

    def _varint(self) -> int:
        value, shift, byte = 0, 0, 0x80
        while byte & 0x80:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
        return value

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

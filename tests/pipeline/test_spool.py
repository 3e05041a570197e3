"""A task's spool: what is read back of it, and that no damage to it goes unseen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from quire.log import pack
from quire.log.simulated.faulty import Disk
from quire.pipeline.sink import spool
from quire.pipeline.sink.errors import SpoolDamaged
from quire.pipeline.sink.spool import Spool, SpoolWriter, check_spool, commands_of, digest_of


def written(disk: Disk, commands: Sequence[Any]) -> Spool:
    writer = SpoolWriter(disk.directory(), "spool", 0)
    for command in commands:
        writer.add(pack(command))
    found = writer.finished()
    assert found is not None
    return found


def test_a_spool_gives_back_its_commands_from_any_place_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "BLOCK_COMMANDS", 2)
    disk, commands = Disk(), [["add", number] for number in range(7)]
    spools = [written(disk, commands)]
    directory = disk.directory()

    for skip in range(len(commands) + 1):
        assert [each for block in commands_of(directory, spools * 2, skip) for each in block] == (commands * 2)[skip:]


def test_a_block_has_so_many_commands_and_so_many_bytes_and_no_more() -> None:
    quarter = spool.BLOCK_BYTES // 4
    long = b"x" * (quarter - 3)  # With msgpack's three bytes for its length.
    for commands, sizes in (
        ([1] * spool.BLOCK_COMMANDS, [1000]),
        ([1] * (spool.BLOCK_COMMANDS + 1), [1000, 1]),
        ([long] * 4, [4]),
        ([long] * 3 + [long + b"x"], [3, 1]),
        ([long * 5, 1], [1, 1]),
    ):
        disk = Disk()
        spools = [written(disk, commands)]
        assert [len(block) for block in commands_of(disk.directory(), spools)] == sizes


def test_no_bit_of_a_spool_can_change_unseen_and_no_byte_be_missing_or_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "BLOCK_COMMANDS", 2)
    disk = Disk()
    spooled = written(disk, [["add", 1], ["mul", 2], ["sub", 3]])
    directory, whole = disk.directory(), disk.content("spool")
    for position in range(len(whole)):
        for bit in range(8):
            disk.flip_bit("spool", position, bit)
            with pytest.raises(SpoolDamaged):
                check_spool(directory, spooled)
            disk.flip_bit("spool", position, bit)
    for harmed in (whole[:-1], whole + b"\0", b""):
        disk.replace("spool", harmed)
        with pytest.raises(SpoolDamaged, match=r"spool: has \d+ bytes"):
            check_spool(directory, spooled)
    disk.delete("spool")
    with pytest.raises(SpoolDamaged, match="is missing"):
        check_spool(directory, spooled)


def test_a_digest_is_of_the_commands_in_any_order_and_division_and_of_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def digest(*parts: Sequence[Any]) -> str | None:
        return digest_of([written(Disk(), part) for part in parts])

    commands = [["add", number] for number in range(7)]
    whole = digest(commands)
    for block in (1, 2, 1000):
        monkeypatch.setattr(spool, "BLOCK_COMMANDS", block)
        assert digest(commands[::-1]) == digest(commands[4:], commands[:4]) == whole
    others = (commands[1:], [*commands, commands[0]], [["add", 7], *commands[1:]], [["sub", 0], *commands[1:]])
    swapped = [["mul", 0], ["add", 1], *commands[2:]], [["add", 0], ["mul", 1], *commands[2:]]
    assert len({whole, *map(digest, others), *map(digest, swapped)}) == 7
    assert digest() == digest_of([]) != whole
    assert digest_of([written(Disk(), commands), written(Disk(), commands)._replace(digest=None)]) is None

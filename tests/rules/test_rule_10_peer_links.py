"""Rule 10 of `docs/protocol.md`: peer links."""

from quire.replication.net.duplicate_guard import Caller, DuplicateNodeGuard
from tests.replication.world import disk_id


def test_a_second_process_with_one_disk_enters_only_if_the_first_does_not_answer() -> None:
    """A copied data_dir promises twice with one disk."""
    guard = DuplicateNodeGuard()
    guard.opened(1, Caller(disk_id("n1"), 100))

    probes = guard.begin_round(Caller(disk_id("n1"), 200))

    assert probes is not None
    assert probes.links == [1]
    assert guard.is_alive(1, probes.nonce)

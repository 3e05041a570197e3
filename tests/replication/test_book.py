"""Where a peer may be reached, and whom to believe to be a member: `Book`."""

from quire.replication.core import Members
from quire.replication.core.members import Member, Removed, Role
from quire.replication.core.messages import Directory
from quire.replication.net.book import Book, believed
from quire.replication.net.trust import Trust

RECORD = 7


def in_log(*node_ids: str, removed: tuple[str, ...] = ()) -> Members:
    rows = tuple(Member(node, node.encode().ljust(16, b"d"), f"{node}.log:1", Role.VOTER) for node in node_ids)
    return Members(rows, tuple(Removed(node, node.encode().ljust(16, b"g"), 3) for node in removed))


def book_of(members: Members, configured: dict[str, str] | None = None, links: dict[str, str] | None = None) -> Book:
    return Book("n1", lambda: (RECORD, members), configured or {}, links or {})


def test_the_log_is_tried_first_then_each_other_source_and_a_link_instead_of_all() -> None:
    book = book_of(in_log("n1", "n2", "n3"), {"n2": "n2.config:1", "n3": "n3.config:1"}, {"n3": "proxy:1"})
    book.found("n2", "n2.seed:1")
    book.told("n2", "n2.hello:1")
    book.learnt("n3", RECORD + 1, {"n2": "n2.directory:1"})
    assert book.addresses_of("n2") == ["n2.log:1", "n2.directory:1", "n2.config:1", "n2.seed:1", "n2.hello:1"]
    assert book.addresses_of("n3") == ["proxy:1"]
    assert book.addresses_of("n4") == []


def test_configured_nodes_that_the_log_removed_are_asked_who_they_are_and_not_dialled_as_members() -> None:
    book = book_of(in_log("n1", "n2", removed=("n3", "n4")), {"n1": "n1:1", "n2": "n2:1", "n3": "n3:1", "n5": "n5:1"})
    assert (book.left_behind(), book.peers()) == (["n3:1"], {"n2", "n5"})


def test_a_directory_counts_only_while_it_is_of_a_later_record_than_this_log() -> None:
    book = book_of(in_log("n1", "n2"))
    book.learnt("n2", RECORD, {"n4": "n4:1"})
    assert (book.is_member("n4"), book.peers()) == (False, {"n2"})
    book.learnt("n2", RECORD + 1, {"n4": "n4:1"})
    assert (book.is_member("n4"), book.peers(), book.is_certain("n4")) == (True, {"n2", "n4"}, False)


def test_the_later_directory_says_where_a_node_is() -> None:
    book = book_of(in_log("n1", "n2", "n3"))
    book.learnt("n3", RECORD + 2, {"n4": "n4.new:1"})
    book.learnt("n2", RECORD + 1, {"n4": "n4.old:1"})
    assert book.addresses_of("n4") == ["n4.new:1"]


def test_a_removed_node_is_not_dialled_but_may_still_call_to_be_told() -> None:
    book = book_of(in_log("n1", "n2", removed=("n3",)), {"n2": "n2:1", "n3": "n3:1"})
    assert (book.peers(), book.is_member("n3"), book.is_certain("n3")) == ({"n2"}, True, False)


def test_a_node_that_was_removed_and_added_again_is_a_peer() -> None:
    book = book_of(in_log("n1", "n2", "n3", removed=("n3",)))
    assert (book.was_removed("n3"), book.peers()) == (False, {"n2", "n3"})


def test_a_peer_that_proves_nothing_names_only_addresses_of_this_machine() -> None:
    said = Directory(1, (("n2", "127.0.0.1:5"), ("n3", "203.0.113.9:5")))
    assert believed(Trust((), lambda _: True), said) == {"n2": "127.0.0.1:5"}
    assert believed(Trust((b"secret" * 4,), lambda _: True), said) == dict(said.addresses)

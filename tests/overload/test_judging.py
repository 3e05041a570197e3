"""Each verdict can fail, and fails at its bound."""

from tests.overload.judging import flat_memory, kept_goodput, leader_changes, quick_answers, served_well, within_memory

LED = {"n1": [{"epoch": 1, "leader": "n1"}], "n2": [{"epoch": 1, "leader": "n1"}]}


def test_more_than_99_in_100_must_succeed_and_at_least_one() -> None:
    assert served_well(1000, 0).holds
    assert served_well(991, 9).holds
    assert not served_well(990, 10).holds
    assert not served_well(0, 0).holds


def test_a_leader_that_is_elected_again_has_changed() -> None:
    again = {**LED, "n2": [*LED["n2"], {"epoch": 2, "leader": "n1"}]}

    assert leader_changes(LED, LED).holds
    assert not leader_changes(LED, again).holds
    assert "n2" in leader_changes(LED, again).seen


def test_one_node_above_the_bound_is_too_much_memory() -> None:
    assert within_memory({"n1": 100, "n2": 7}, 100).holds
    assert not within_memory({"n1": 101, "n2": 7}, 100).holds


def test_goodput_is_measured_against_its_peak() -> None:
    assert kept_goodput(1000.0, 900.0, 0.9).holds
    assert not kept_goodput(1000.0, 899.0, 0.9).holds
    assert not kept_goodput(0.0, 0.0, 0.9).holds


def test_every_stretch_of_time_has_a_bounded_p99_and_accepts_something() -> None:
    assert quick_answers([0.5, 2.0], 2.0).holds
    assert not quick_answers([0.5, 2.1], 2.0).holds
    assert not quick_answers([0.0, 0.0], 2.0).holds


def test_memory_that_grows_to_the_end_is_not_flat() -> None:
    assert flat_memory([10, 900, 90, 920], 20).holds
    assert not flat_memory([10, 900, 90, 921], 20).holds
    assert not flat_memory([10, 20, 30, 40], 19).holds

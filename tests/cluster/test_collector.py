"""When the garbage collector visits what is new, and when it freezes what has stayed."""

from typing import Literal

import quire.cluster.serve.collector as shipped
from quire.cluster.serve.collector import ALL, FULL_S, LONG_S, NEW, Callback, Collector


class Collected:
    """A garbage collector whose collections take as long as is said, and a clock."""

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []
        self.thresholds: list[tuple[int, int, int]] = []
        self.frozen = 0
        self.new_takes_s = self.all_take_s = 0.0
        self.used_s = 100.0
        self.collections: list[int] = []

    def collect(self, generation: int = ALL, /) -> int:
        self.collections.append(generation)
        takes_s = self.all_take_s if generation == ALL else self.new_takes_s
        phases: tuple[tuple[Literal["start", "stop"], float], ...] = (("start", takes_s), ("stop", 0.0))
        for phase, phase_takes_s in phases:
            for callback in self.callbacks:
                callback(phase, {"generation": generation, "collected": 0, "uncollectable": 0})
            self.used_s += phase_takes_s
        return 0

    def freeze(self) -> None:
        self.frozen += 1

    def set_threshold(self, young: int, middle: int, old: int, /) -> None:
        self.thresholds.append((young, middle, old))

    def collector(self) -> Collector:
        """One that has started."""
        collector = Collector(self, lambda: self.used_s, lambda: self.used_s)
        collector.start()
        assert self.frozen == 1, "what the program consists of"
        self.collections.clear()
        return collector


def test_what_is_new_is_collected_with_each_look_whatever_was_freed() -> None:
    collected = Collected()
    collector = collected.collector()
    for _ in range(3):
        collector.look()
    assert collected.collections == [NEW] * 3


def test_what_stays_is_frozen_before_its_visit_would_take_long() -> None:
    collected = Collected()
    collector = collected.collector()
    collected.new_takes_s, collected.all_take_s = LONG_S * 0.4, LONG_S * 0.8
    for _ in range(3):
        collector.look()
    assert (collected.collections, collected.frozen) == ([NEW] * 3, 1), "each adds what it left to the others"
    collector.look()
    assert (collected.collections[3:], collected.frozen) == ([ALL], 2)
    for _ in range(3):
        collector.look()
    assert (collected.collections[4:], collected.frozen) == ([NEW] * 3, 2), "nothing but what is new is left"


def test_nothing_is_frozen_when_most_of_what_was_new_is_gone() -> None:
    collected = Collected()
    collector = collected.collector()
    collected.new_takes_s, collected.all_take_s = LONG_S * 0.4, LONG_S * 0.3
    for _ in range(40):
        collector.look()
    assert collected.frozen == 1
    assert collected.collections.count(ALL) == 13, "each third: two of what is new, and what was left"


def test_the_collector_s_own_collections_count_as_well_but_not_those_of_the_youngest() -> None:
    collected = Collected()
    collector = collected.collector()
    collected.new_takes_s, collected.all_take_s = LONG_S * 2, LONG_S
    collected.collect(0)
    collector.look()
    assert ALL not in collected.collections
    collected.collect(NEW)
    collector.look()
    assert (collected.collections[-1], collected.frozen) == (ALL, 2)


def test_all_is_collected_now_and_then_by_a_process_that_does_next_to_nothing() -> None:
    collected = Collected()
    collector = collected.collector()
    for _ in range(2):
        collected.used_s += FULL_S / 2
        collector.look()
    assert collected.collections == [NEW, ALL]
    assert collected.frozen == 1
    assert FULL_S <= 10


def test_no_generation_grows_by_more_than_a_collection_may_visit_in_time() -> None:
    collected = Collected()
    collected.collector()
    assert collected.thresholds == [(shipped.ALLOCATIONS, shipped.YOUNG, shipped.MIDDLE)]
    assert shipped.ALLOCATIONS * (shipped.YOUNG + 1) <= 150_000


def test_nothing_is_left_behind_after_the_end() -> None:
    collected = Collected()
    collected.collector().stop()
    assert collected.callbacks == []

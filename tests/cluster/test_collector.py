"""When the garbage collector freezes what has survived."""

from typing import Literal

from quire.cluster.serve.collector import ALLOCATIONS, LONG_S, MIDDLE, YOUNG, Callback, Collector

OLDEST = 2


class Collected:
    """A garbage collector whose collections take as long as is said."""

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []
        self.thresholds: list[tuple[int, int, int]] = []
        self.frozen = 0
        self.takes_s = 0.0
        self.used_s = 100.0

    def collect(self, generation: int = OLDEST) -> int:
        phases: tuple[tuple[Literal["start", "stop"], float], ...] = (("start", self.takes_s), ("stop", 0.0))
        for phase, takes_s in phases:
            for callback in self.callbacks:
                callback(phase, {"generation": generation, "collected": 0, "uncollectable": 0})
            self.used_s += takes_s
        return 0

    def freeze(self) -> None:
        self.frozen += 1

    def set_threshold(self, young: int, middle: int, old: int, /) -> None:
        self.thresholds.append((young, middle, old))

    def collector(self) -> Collector:
        """One that has started."""
        collector = Collector(self, lambda: self.used_s)
        collector.start()
        assert self.frozen == 1, "what the program consists of"
        return collector


def test_what_survives_a_long_collection_is_not_visited_again() -> None:
    collected = Collected()
    collector = collected.collector()
    for takes_s, frozen in ((LONG_S / 2, 1), (LONG_S * 2, 2), (LONG_S / 2, 2), (LONG_S * 30, 3)):
        collected.takes_s = takes_s
        collector.collect()
        assert collected.frozen == frozen
    collected.collect(1)
    assert collected.frozen == 4, "the middle generation counts as well"


def test_the_youngest_are_not_frozen_most_of_them_will_be_freed_soon() -> None:
    collected = Collected()
    collected.collector()
    collected.takes_s = LONG_S * 2
    collected.collect(0)
    assert collected.frozen == 1


def test_no_generation_grows_by_more_than_a_collection_may_visit_in_time() -> None:
    collected = Collected()
    collected.collector()
    assert collected.thresholds == [(ALLOCATIONS, YOUNG, MIDDLE)]
    assert ALLOCATIONS * (YOUNG + 1) <= 150_000


def test_nothing_is_left_behind_after_the_end() -> None:
    collected = Collected()
    collected.collector().stop()
    assert collected.callbacks == []

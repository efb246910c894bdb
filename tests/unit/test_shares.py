"""The order in which several workers run the suite."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from shares import PROCESS_S, in_shares


@dataclass(frozen=True)
class Item:
    path: Path
    number: int
    marker: str = ""

    def get_closest_marker(self, name):
        return name == self.marker


def module(name, count, marker=""):
    return [Item(Path(name), number, marker) for number in range(count)]


SUITE = [
    *module("unit_a", 400),
    *module("process_a", 10, "process"),
    *module("spark_a", 5, "spark"),
    *module("unit_b", 300),
    *module("process_b", 40, "process"),
    *module("spark_b", 7, "spark"),
    *module("process_c", 3, "process"),
]


def stretches(items, workers):
    bounds = [len(items) * number // workers for number in range(workers + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_long_tests_come_first_and_modules_stay_whole(workers):
    ordered = in_shares(SUITE, workers)
    assert sorted(ordered, key=hash) == sorted(SUITE, key=hash)
    homes = {}
    for worker, stretch in enumerate(stretches(ordered, workers)):
        kinds = [bool(item.marker) for item in stretch]
        assert kinds == sorted(kinds, reverse=True), "a short test comes before a long one"
        for item in stretch:
            if item.marker:
                homes.setdefault("spark" if item.marker == "spark" else item.path, set()).add(worker)
    assert all(len(workers) == 1 for workers in homes.values())
    for path in {item.path for item in SUITE}:
        assert [item for item in ordered if item.path == path] == [item for item in SUITE if item.path == path]


def test_workers_have_about_as_much_to_do():
    modules = [item for number in range(30) for item in module(f"p{number}", 10 + number % 7, "process")]
    ordered = in_shares([*modules, *module("unit", 1000)], 3)
    loads = [sum(PROCESS_S for item in stretch if item.marker) for stretch in stretches(ordered, 3)]
    assert max(loads) - min(loads) <= PROCESS_S * 17


def test_a_run_of_long_tests_alone_keeps_them_all():
    suite = module("process_a", 10, "process")
    assert in_shares(suite, 3) == suite

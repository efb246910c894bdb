"""Ranges of a backfill: what is read is what was asked for, less what the table holds and what the pipeline reads."""

import itertools
import random
from types import SimpleNamespace

import pytest

from millstream.errors import Rejected
from millstream.pipeline import limits
from millstream.pipeline.backfill import _passes
from millstream.pipeline.limits import Limits, edges
from millstream.pipeline.ranges import after, common, lacking, united
from millstream.spark.logs import SourcePartition


def offsets(ranges):
    return {offset for start, end in ranges for offset in range(start, end)}


def test_ranges_are_sets_of_offsets():
    chance = random.Random(3)
    for _ in range(300):
        given = [(start, start + chance.randrange(6)) for start in (chance.randrange(40) for _ in range(6))]
        held = united(given)
        assert offsets(held) == offsets(given)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(held)), "neither touch nor overlap"
        low = chance.randrange(45)
        high = low + chance.randrange(20)
        wanted = set(range(low, high))
        assert offsets(lacking(low, high, held)) == wanted - offsets(held)
        assert offsets(common(low, high, held)) == wanted & offsets(held)


def test_passes_read_what_is_lacking_once_and_say_what_they_leave_out():
    chance = random.Random(5)
    for _ in range(100):
        own = {"t": {p: chance.randrange(30, 60) for p in "01"}}
        given = {
            ("t", p): Limits(chance.randrange(30), chance.choice([None, chance.randrange(20, 70)]), chance.randrange(8))
            for p in "01"
        }
        held = {"t": {p: united([(a, a + 5) for a in chance.sample(range(30), 3)]) for p in "01"}}
        notes = []
        read = {p: set() for p in "01"}
        state = held
        for bounds in _passes(given, own, held, "s", notes.append):
            assert (bounds.done, bounds.hand_over) == (state, own)
            for p in "01":
                part = set(range(bounds.start["t"][p], bounds.until["t"][p]))
                assert not part & (read[p] | offsets(held["t"][p]))
                read[p] |= part
            state = after(state, bounds.start, bounds.until)
        for p in "01":
            limit = given["t", p]
            end = min(own["t"][p], own["t"][p] if limit.end is None else limit.end)
            assert read[p] == set(range(max(limit.start, limit.oldest), end)) - offsets(held["t"][p])
            assert offsets(state["t"][p]) == read[p] | offsets(held["t"][p])


def test_what_is_not_read_is_said():
    notes = []
    held = {"t": {"0": [(10, 20)]}}
    (one, two) = _passes({("t", "0"): Limits(0, 50, 5)}, {"t": {"0": 40}}, held, "s", notes.append)
    assert (one.start, one.until) == ({"t": {"0": 5}}, {"t": {"0": 10}})
    assert (two.start, two.until) == ({"t": {"0": 20}}, {"t": {"0": 40}})
    assert notes == [
        "s: t-0 from 0 to 5 is no longer in the log",
        "s: t-0 from 40 to 50 is read by the pipeline itself",
        "s: t-0 from 10 to 20 is in the table already",
    ]
    assert _passes({("t", "0"): Limits(10, 20, 0)}, {"t": {"0": 40}}, held, "s", notes.append) == []


class Logs:
    """Two partitions of 0 to 100; a record a second from 1970 on."""

    def __init__(self, topics=("t",)):
        self.topics, self.end = topics, 100
        self.cluster = SimpleNamespace(list_offsets=self.at_times)

    def source_partitions(self):
        return [SourcePartition(topic, "0" * 32, p, 0) for topic in self.topics for p in (0, 1)]

    def earliest(self, places):
        return {place.key: SimpleNamespace(offset=3) for place in places}

    def latest(self, places):
        return {place.key: SimpleNamespace(offset=self.end) for place in places}

    def at_times(self, wanted):
        return {key: SimpleNamespace(offset=at // 1000 if at < self.end * 1000 else -1) for key, at in wanted.items()}


def limited(start="earliest", end=None, *, logs=None, wait=False):
    found = edges(logs or Logs(), start, end, wait=wait, phase=lambda what: None)
    return {key: (limit.start, limit.end) for key, limit in found.items()}


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ("earliest", None, {("t", "0"): (3, None), ("t", "1"): (3, None)}),
        ("10", "20", {("t", "0"): (10, 20), ("t", "1"): (10, 20)}),
        ("earliest", "latest", {("t", "0"): (3, 100), ("t", "1"): (3, 100)}),
        ("1970-01-01T00:00:10", "1970-01-01T00:01:00Z", {("t", "0"): (10, 60), ("t", "1"): (10, 60)}),
        ("1970-01-01T00:00:10", "2026-01-01", {("t", "0"): (10, 100), ("t", "1"): (10, 100)}),
        ("1=7", "50", {("t", "1"): (7, 50)}),
        ("0=1, 1=2", "0=9", {("t", "0"): (1, 9)}),
        ("t-0=4", None, {("t", "0"): (4, None)}),
    ],
)
def test_limits_are_offsets_or_times_of_all_partitions_or_of_some(start, end, found):
    assert limited(start, end) == found


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ("soon", None, "'soon' is no limit of a backfill"),
        ("earliest", "0=x", "not of the form PARTITION=OFFSET"),
        ("2=5", None, "reads no partition 2"),
        ("earliest", "101", "offset 101 of t-0 has not come, the log ends at 100; --wait waits for it"),
        ("earliest", "2999-01-01", "2999-01-01 has not come"),
    ],
)
def test_limits_that_cannot_be_are_refused(start, end, said):
    with pytest.raises(Rejected, match=said.replace("(", r"\(")):
        limited(start, end)


def test_an_end_that_has_not_come_is_waited_for(monkeypatch):
    logs = Logs()
    monkeypatch.setattr(limits.time, "sleep", lambda seconds: setattr(logs, "end", logs.end + 10))
    assert limited("90", "115", logs=logs, wait=True)["t", "0"] == (90, 115)
    with pytest.raises(Rejected, match="--wait needs --to"):
        limited(wait=True)


def test_partitions_of_several_topics_are_named_with_them():
    assert limited("a-1=5", None, logs=Logs(("a", "b"))) == {("a", "1"): (5, None)}
    with pytest.raises(Rejected, match="TOPIC-PARTITION"):
        limited("1=5", None, logs=Logs(("a", "b")))

"""A disk that does not answer is seen by somebody who does not wait for it."""

import re

import pytest

from millstream.app.slow_disk import AGAIN_MS, LIMIT_MS, DiskWatch
from millstream.telemetry.metrics import ENTERED_CELL, StatsSlab

MS = 1_000_000


@pytest.fixture
def watched(capfd):
    clock = [10_000 * MS]
    stats, writer = StatsSlab(), StatsSlab(1, "writer")
    watch = DiskWatch(stats, now_ns=lambda: clock[0])
    watch.add(1, writer)

    def after(ms, entered_ms=None):
        """What is said when so much later the writer has been at the disk since then."""
        clock[0] += ms * MS
        writer.cells[ENTERED_CELL] = entered_ms * MS if entered_ms is not None else 0
        watch.poll()
        return re.findall(r"Z (WARN|INFO) +(.*)$", capfd.readouterr().err, re.MULTILINE)

    return after, stats.counter("storage_faults", kind="slow")


def test_a_disk_that_answers_is_not_worth_a_line(watched):
    after, slow = watched
    assert after(100, 10_050) == []
    assert after(100) == []
    assert after(LIMIT_MS, 10_300) == []
    assert slow.value == 0


def test_a_wait_is_told_when_it_begins_each_minute_and_when_it_ends(watched):
    after, slow = watched
    assert after(1_500, 10_000) == [
        ("WARN", "the disk has not written the write-ahead log of shard 1 for 1500 ms; its producers wait")
    ]
    assert after(1_000, 10_000) == []
    assert [level for level, _ in after(AGAIN_MS, 10_000)] == ["WARN"]
    assert after(100) == [("INFO", "the disk answered the write-ahead log of shard 1 after 62600 ms")]
    assert after(100) == []
    assert slow.value == 1


def test_many_waits_are_counted_each_and_told_once_a_minute(watched):
    after, slow = watched
    assert len(after(2_000, 10_000)) == 1
    assert len(after(100, 12_050)) == 1, "the end of the first"
    assert after(2_000, 12_050) == []
    assert after(100) == []
    assert slow.value == 2

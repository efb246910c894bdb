"""When a shard collects garbage: what outlived young collections is looked at when there is little else to do."""

from types import SimpleNamespace

import pytest

from millstream.shard import collector


@pytest.fixture
def looks(monkeypatch):
    """Looks once: after having used so many seconds of the core, so many young collections after the last other one."""
    used, counts, made, timers = [0.0], [0], [], []
    monkeypatch.setattr(collector.time, "process_time_ns", lambda: int(1e9 * used[0]))
    monkeypatch.setattr(collector.gc, "get_count", lambda: (0, counts[0], 0))
    monkeypatch.setattr(collector.gc, "collect", made.append)
    reactor = SimpleNamespace(call_later=lambda delay_us, callback: timers.append((delay_us, callback)))
    collector.collect_when_quiet(reactor)

    def look(seconds, young):
        used[0] += seconds
        counts[0] = young
        ((delay_us, callback),) = timers
        assert delay_us == collector.LOOK_US
        timers.clear()
        made.clear()
        callback()
        return list(made)

    return look


def test_a_quiet_shard_collects_what_outlived_young_collections_and_a_busy_one_does_not(looks):
    busy_s, quiet_s = (share * collector.QUIET_SHARE * collector.LOOK_US / 1e6 for share in (1.1, 0.9))
    assert looks(busy_s, 100) == []
    assert looks(quiet_s, collector.YOUNG_MIN) == [1]
    assert looks(quiet_s, collector.YOUNG_MIN - 1) == []
    assert looks(busy_s, 10_000) == []
    assert looks(0, 10_000) == [1]


def test_objects_in_use_are_not_looked_at_while_a_shard_is_busy():
    """Young collections by CPython's own count; the next generation is left to quiet times for as good as ever."""
    import gc

    before = gc.get_threshold()
    try:
        collector.tune()
        young, middle, full = gc.get_threshold()
        assert young <= 5_000
        assert young * middle >= 50_000_000
        assert full >= 1
    finally:
        gc.set_threshold(*before)

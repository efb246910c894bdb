"""Settings of compaction that change while the shard runs."""

import pytest
from compaction_support import COMPACTED, compact, compacted_shard, overwrite


def test_settings_of_the_cleaner_hold_from_the_next_pass_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = compacted_shard(log_cleaner_dedupe_buffer_size=24 * 14)
    settings = shard.storage.settings
    monkeypatch.setattr(settings, "log_cleaner_dedupe_buffer_size", 1 << 20)
    monkeypatch.setattr(settings, "log_cleaner_io_max_bytes_per_second", 5e6)
    monkeypatch.setattr(settings, "log_cleaner_cpu_percent", 20)
    shard.storage.compaction.follow(settings)
    log = shard.open(1, **COMPACTED)
    overwrite(shard, log, 6, keys=40)
    log.roll()
    waited = []
    monkeypatch.setattr(shard.processes.cleaner._pace, "wait", lambda seconds: waited.append(seconds) or False)
    compact(shard, log)
    assert shard.stats.counter("log_cleaner_runs").value <= 2, "one pass has room for all keys"
    assert sum(waited) >= 22_000 / 5e6

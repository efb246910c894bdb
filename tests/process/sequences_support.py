"""What tests with sequences of requests share: a topic of each kind, short intervals, and the errors in a log."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

import fuzz_sequences as fuzz_sequences

SMALL = {"internal.segment.bytes": "20000", "file.delete.delay.ms": "100"}
TOPICS = {
    "local": {},
    "compacted": {**SMALL, "cleanup.policy": "compact", "max.compaction.lag.ms": "500"},
    "tiered": {**SMALL, "storage.mode": "tiered", "retention.local.target.ms": "0"},
    "shared": {"storage.mode": "shared"},
    "events": {"topic.kind": "events"},
    "tiered-events": {**SMALL, "topic.kind": "events", "storage.mode": "tiered", "retention.local.target.ms": "0"},
}
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "log.retention.check.interval.ms": 300, "checkpoint.ms": 1000}


def id_of(described):
    halves = (described.topic_id.get_most_significant_bits(), described.topic_id.get_least_significant_bits())
    return b"".join((half % (1 << 64)).to_bytes(8, "big") for half in halves)


def errors(broker):
    return [line for line in broker.log_path.read_text().splitlines() if " ERROR " in line or "Traceback" in line]

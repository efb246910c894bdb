"""Compaction of transactions: aborted records go, markers follow once nothing else of the transaction is left, and a
power failure at any file operation leaves a log whose readers see the committed records and no others."""

from __future__ import annotations

import random
from typing import Any

import pytest
from compaction_support import COMPACTED, NOW_MS, compact, compacted_shard, headers_of, put
from storage_support import read_everything, settle

from millstream.core.producer_state import ProducerBudget, ProducerState
from millstream.partition.append.known_producers import enter_batch
from millstream.wire.records import ABORT, COMMIT, build_batch, control_record, iter_batches, iter_records, parse_header
from sim.engine.disk import PowerFailure, SimDisk
from sim.engine.local_storage import LocalShard, Stopped, recover_locally

RETENTION_MS = 5000
CONFIG = {**COMPACTED, "segment_bytes": 1 << 20, "delete_retention_ms": RETENTION_MS, "file_delete_delay_ms": 10}


class Topic:
    """A compacted log with its producers' state, as a partition keeps both."""

    def __init__(self, seed: int = 1, disk: SimDisk | None = None) -> None:
        self.shard: LocalShard = compacted_shard(seed, disk)
        self.log: Any = self.shard.open(1, **CONFIG)
        self.state = ProducerState(3_600_000, ProducerBudget(100))
        snapshot = self.log.files.snapshots.newest
        if snapshot is not None:
            self.state.load(snapshot[1])
        self.log.replay_headers(
            0 if snapshot is None else snapshot[0], lambda header: enter_batch(self.state, header, NOW_MS)
        )
        self.state.transactions.committed(self.log.next_offset)
        self.log.owner.producers = self.state
        self.log.owner.producer_snapshot = self.state.snapshot
        self.log.owner.active_producers = self.state.last_offsets
        self.log.owner.first_unstable = lambda: self.state.transactions.first_unstable(self.log.next_offset)

    def write(self, producer_id: int, epoch: int, key: bytes, value: bytes) -> int:
        """A batch of a transaction, the first one of its epoch."""
        offset = put(
            self.shard,
            self.log,
            (key, value),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        self.state.record(producer_id, epoch, 0, 1, offset, NOW_MS, NOW_MS)
        self.state.transactions.began(producer_id, offset)
        return offset

    def end(self, producer_id: int, epoch: int, *, commits: bool) -> int:
        """A marker. With ``epoch`` above that of the data it begins the producer's next epoch (KIP-890)."""
        log, offset = self.log, self.log.next_offset
        data = build_batch(
            [control_record(COMMIT if commits else ABORT, 3, NOW_MS)],
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=True,
            control=True,
        )
        log.append((memoryview(data),), len(data), offset, offset, 0, NOW_MS)
        self.state.end_transaction(producer_id, epoch, 3, offset, NOW_MS, committed=commits)
        self.state.committed(log.next_offset)
        settle(self.shard)
        return offset

    def plain(self, key: bytes, value: bytes) -> None:
        put(self.shard, self.log, (key, value))

    def compact(self) -> None:
        self.log.roll()
        compact(self.shard, self.log)

    def markers(self) -> list[int]:
        return [one.base_offset for one in headers_of(self.shard, self.log) if one.is_control]

    def aborted(self) -> list[tuple[int, int, int]]:
        return self.state.transactions.aborted_between(self.log.start_offset, self.log.next_offset)

    def read_committed(self) -> dict[bytes, bytes | None]:
        """What Kafka's consumer makes of the whole log and the list: it skips a listed producer's batches from the
        first offset on, until it meets an abort marker of that producer.
        """
        coming, skipped = self.aborted(), set()
        found: dict[bytes, bytes | None] = {}
        for batch in iter_batches(read_everything(self.shard, self.log)):
            header = parse_header(batch)
            while coming and coming[0][1] <= header.last_offset:
                skipped.add(coming.pop(0)[0])
            if header.is_control:
                if next(iter_records(batch)).key == control_record(ABORT, 0, 0)[0]:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                found |= {record.key: record.value for record in iter_records(batch)}
        return found

    def pass_over(self, times: int) -> None:
        """Overwrite ``a``, compact, and let the time for tombstones go by, some times over."""
        for count in range(times):
            self.plain(b"a", b"%d" % count)
            self.compact()
            self.shard.reactor.advance(RETENTION_MS * 1000)


def test_a_marker_goes_after_the_records_of_its_transaction_and_the_time_for_tombstones() -> None:
    topic = Topic()
    topic.write(7, 0, b"a", b"aborted")
    aborts = topic.end(7, 1, commits=False)
    topic.write(7, 1, b"a", b"1")
    commits = topic.end(7, 2, commits=True)
    topic.write(7, 2, b"b", b"2")
    last = topic.end(7, 3, commits=True)
    topic.compact()
    # No record of the aborted transaction is left, but a batch of it was read.
    assert topic.markers() == [aborts, commits, last]
    assert topic.aborted() == [(7, 0, aborts)]
    assert topic.read_committed() == {b"a": b"1", b"b": b"2"}

    topic.plain(b"a", b"3")
    topic.compact()
    # Nothing is left of the aborted transaction: a horizon is noted, and readers are not told of it any more.
    assert topic.markers() == [aborts, commits, last]
    assert topic.aborted() == []
    (noted,) = [one for one in headers_of(topic.shard, topic.log) if one.attributes & 0x40]
    assert noted.base_offset == aborts
    assert 0 < noted.base_timestamp - topic.shard.reactor.wall_ms() <= RETENTION_MS

    topic.plain(b"c", b"3")
    topic.compact()
    assert topic.markers() == [aborts, commits, last], "the time for tombstones is not over"
    topic.shard.reactor.advance(RETENTION_MS * 1000)
    topic.plain(b"d", b"3")
    topic.compact()
    # The committed transaction lost its record one pass later than the aborted one, and its horizon is over, too.
    assert topic.markers() == [last], "b is still there, so its marker is"
    assert topic.read_committed() == {b"a": b"3", b"b": b"2", b"c": b"3", b"d": b"3"}


def test_the_only_trace_of_a_producers_epoch_stays() -> None:
    topic = Topic()
    topic.write(7, 0, b"a", b"aborted")
    marker = topic.end(7, 1, commits=False)
    topic.pass_over(4)
    assert topic.markers() == [marker]
    again = Topic(disk=stopped(topic))
    assert again.state.epoch_of(7) == 1
    again.state.clear()  # it expired
    for count in range(3):
        again.shard.reactor.advance(RETENTION_MS * 1000)
        again.plain(b"a", b"%d" % count)
        again.compact()
    assert again.markers() == []


def test_a_producers_last_batch_keeps_its_marker_until_the_producer_is_forgotten() -> None:
    """With one epoch for several transactions its last batch keeps a header, and that one would look open."""
    topic = Topic()
    topic.write(7, 0, b"a", b"aborted")
    marker = topic.end(7, 0, commits=False)
    topic.pass_over(4)
    assert topic.markers() == [marker]
    again = Topic(disk=stopped(topic))
    assert again.state.last_offsets() == {7: 0}
    assert not again.state.transactions.open
    again.state.evict_oldest()
    again.pass_over(3)
    assert again.markers() == []
    assert again.aborted() == []


def stopped(topic: Topic) -> SimDisk:
    topic.shard.stop()
    return topic.shard.disk


def due(seed: int, disk: SimDisk | None = None) -> Topic:
    """A topic with aborted and replaced transactions that were compacted once."""
    topic = Topic(seed, disk or SimDisk(random.Random(seed)))
    topic.write(7, 0, b"a", b"aborted")
    topic.end(7, 1, commits=False)
    topic.write(7, 1, b"a", b"replaced")
    topic.end(7, 2, commits=True)
    topic.write(7, 2, b"b", b"kept")
    topic.end(7, 3, commits=True)
    topic.plain(b"a", b"last")
    topic.log.roll()
    settle(topic.shard)
    topic.write(7, 3, b"c", b"in the active segment")
    topic.end(7, 4, commits=True)
    return topic


WANTED = {b"a": b"last", b"b": b"kept", b"c": b"in the active segment"}


def through_all_passes(topic: Topic, rounds: int) -> None:
    """Pass after pass, until the markers are gone."""
    for _ in range(rounds):
        compact(topic.shard, topic.log)
        topic.shard.reactor.advance(RETENTION_MS * 1000)
        topic.plain(b"a", b"last")
        topic.log.roll()


@pytest.mark.parametrize("torn", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_crash_at_any_file_operation_leaves_readers_the_committed_records(torn: bool) -> None:
    topic = due(5)
    first = topic.shard.disk.operations
    through_all_passes(topic, 4)
    operations = topic.shard.disk.operations - first
    assert 1 not in topic.markers()
    crashed = 0
    for crash_at in range(1, operations + 1):
        topic = due(5)
        disk = topic.shard.disk
        disk.crash_at = disk.operations + crash_at
        try:
            through_all_passes(topic, 4)
        except (PowerFailure, Stopped):
            crashed += 1
        disk.crash_at = -1
        disk.crash(torn=torn)
        assert not recover_locally(disk).faults
        again = Topic(crash_at, disk)
        where = f"crash at {crash_at}"
        assert again.read_committed() == WANTED, where
        assert not again.state.transactions.open, where
        markers = again.markers()
        assert all(marker in markers for _, _, marker in again.aborted()), where
        assert again.state.epoch_of(7) == 4, where
        again.log.roll()
        through_all_passes(again, 4)
        assert again.read_committed() == WANTED, where
        assert 1 not in again.markers(), where
    assert crashed > 100


def test_an_older_snapshot_that_lists_a_transaction_without_marker_is_not_used() -> None:
    topic = due(3)
    through_all_passes(topic, 4)
    topic.shard.call(topic.shard.storage.checkpoint)
    disk = topic.shard.disk
    disk.crash(torn=False)
    snapshots = sorted(name for name in disk.list(topic.log.directory) if name.endswith(".producers"))
    assert len(snapshots) == 2
    disk.flip(f"{topic.log.directory}/{snapshots[-1]}", 20)
    again = Topic(disk=disk)
    assert again.log.files.snapshots.newest is None
    assert again.aborted() == []
    assert again.read_committed() == WANTED

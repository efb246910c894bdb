"""Reads the committed records of one partition, as whole batches, for objects of a bounded size.

::

    what the last backup has ──► is it still the beginning of this log? ──yes──► read on from its end
                                                                        └─no──► read from the log start

A log is another one than before if the leader does not know the epoch of the last batch as reaching that far
(OffsetForLeaderEpoch), as after an unsafe recovery. A compacted topic is read from its start each time: a tombstone
that compaction has removed since would be missing between what was read before and what is read now. Objects with the
same batches are not written again.

An event topic has no batches for Kafka's clients, so its events are fed with their data, and made into batches as a
producer makes them, with their times.

**Crash, overload**: one request is outstanding, and one object in memory. Retention that overtakes the reader makes the
backup start later; a topic that is deleted while it is read is ``TopicReplaced``.
"""

from __future__ import annotations

import struct
import sys
import time
from array import array
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec.structs import replace

from millstream.backup.batches import producer_id_of
from millstream.backup.model import PartitionBackup, StoredBatches
from millstream.client.cluster import error_of
from millstream.client.partition_log import OffsetOutOfRange, PartitionLog, TopicReplaced
from millstream.errors import Rejected, Unavailable
from millstream.format.events.batch import build_event_batch
from millstream.format.segment import walk
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import TimestampMs
from millstream.wire.messages.feed_events import FeedEventsRequest, FeedEventsResponse
from millstream.wire.messages.fetch_event_data import (
    FetchEventDataRequest,
    FetchEventDataResponse,
    WantedEventData,
)
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.client.cluster import Cluster

OBJECT_BYTES: Final = 16 << 20
"""An object is written when it has so many bytes."""

_FEED_EVENTS: Final = 10_000
_FEED_BYTES: Final = 1 << 20
_DATA_BYTES: Final = 16 << 20
_BASE: Final = struct.Struct(">q")


class Ends(NamedTuple):
    """Where a partition starts and ends (exclusive, committed) now."""

    start: int
    end: int


class Place(NamedTuple):
    """One partition of the cluster."""

    topic: str
    topic_id: bytes
    partition: int
    has_events: bool
    is_compacted: bool


class Put(Protocol):
    """Writes batches with the offsets from ``base`` up to ``end`` (exclusive) into an object."""

    def __call__(self, base: int, end: int, data: bytes) -> StoredBatches: ...


def copy_partition(
    cluster: Cluster, place: Place, ends: Ends, before: PartitionBackup | None, put: Put
) -> PartitionBackup:
    """Write what is committed below ``ends.end`` and not in ``before``.

    Raises:
        TopicReplaced: the topic was deleted.
        Unavailable: no leader answers.
    """
    kept = _kept(cluster, place, ends, before)
    if kept is not None and kept.end_offset == ends.end:
        return kept
    copying = _Copying(kept or PartitionBackup(place.partition, ends.start, ends.start), put)
    if place.has_events:
        epoch = _last_epoch(cluster, place)
        for base, end, batch in _event_batches(cluster, place, copying.end, ends.end):
            copying.add(base, end, epoch, batch)
        if _last_epoch(cluster, place) != epoch:
            return replace(copying.done(), leader_epoch=-1)  # the next backup reads it from its start
    else:
        _copy_batches(cluster, place, ends.end, copying)
    return copying.done()


def _kept(cluster: Cluster, place: Place, ends: Ends, before: PartitionBackup | None) -> PartitionBackup | None:
    """What of the last backup is still the beginning of the log; None: nothing is."""
    if before is None or place.is_compacted or not ends.start <= before.end_offset <= ends.end:
        return None
    if before.objects and not _reaches(cluster, place, before.leader_epoch, before.end_offset):
        return None
    objects = tuple(one for one in before.objects if one.end_offset > ends.start)
    return PartitionBackup(
        place.partition, ends.start, before.end_offset, before.leader_epoch, before.producer_id_max, objects
    )


def _reaches(cluster: Cluster, place: Place, epoch: int, end: int) -> bool:
    """Whether the log of now has this epoch up to ``end`` at least."""
    found = _epoch_end(cluster, place, epoch)
    return epoch >= 0 and found.leader_epoch == epoch and found.end_offset >= end


def _last_epoch(cluster: Cluster, place: Place) -> int:
    """The epoch in which the partition ends; -1 if that is not known."""
    leader = cluster.metadata([place.topic]).topics[place.topic].partitions[place.partition]
    return _epoch_end(cluster, place, leader.epoch).leader_epoch


def _epoch_end(cluster: Cluster, place: Place, epoch: int) -> EpochEndOffset:
    topic = OffsetForLeaderTopic(place.topic, [OffsetForLeaderPartition(place.partition, leader_epoch=epoch)])

    def ask() -> EpochEndOffset:
        connection = cluster.connection(cluster.leader(place.topic, place.partition).node_id)
        answer = connection.ask(OffsetForLeaderEpochRequest(-1, [topic]), OffsetForLeaderEpochResponse)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise error_of(found.error_code, f"epochs of {place.topic}-{place.partition}")
        return found

    return cluster.insist("epochs", ask, lambda: cluster.forget(place.topic))


class _Copying:
    """Gathers batches, and writes them as objects. Lifecycle: ``add``, then ``done``."""

    def __init__(self, known: PartitionBackup, put: Put) -> None:
        self._index = known.index
        self._start = known.start_offset
        self.end = known.end_offset
        self._epoch = known.leader_epoch
        self._producer_id_max = known.producer_id_max
        self._objects = list(known.objects)
        self._put = put
        self._parts: list[bytes] = []
        self._base = self.end
        self._size = 0

    def add(self, base: int, end: int, epoch: int, batch: bytes) -> None:
        """The next batch."""
        if not self._parts:
            self._base = base
        self._parts.append(batch)
        self._size += len(batch)
        self.end = end
        self._epoch = epoch
        self._producer_id_max = max(self._producer_id_max, producer_id_of(memoryview(batch)))
        if self._size >= OBJECT_BYTES:
            self._write()

    def starts_at(self, start: int) -> None:
        """Retention has taken what is before ``start``, and the reader had not come so far."""
        self._write()
        self._objects.clear()
        self._start = self.end = start

    def _write(self) -> None:
        if self._parts:
            self._objects.append(self._put(self._base, self.end, b"".join(self._parts)))
            self._parts, self._size = [], 0

    def done(self) -> PartitionBackup:
        """What was read, with what was there before."""
        self._write()
        return PartitionBackup(
            self._index, self._start, self.end, self._epoch, self._producer_id_max, tuple(self._objects)
        )


def _copy_batches(cluster: Cluster, place: Place, end: int, copying: _Copying) -> None:
    deadline = time.monotonic() + cluster.timeout_s
    with PartitionLog(cluster, place.topic, place.partition, topic_id=place.topic_id, read_committed=False) as log:
        offset = copying.end
        while offset < end:
            log.request(offset)
            try:
                fetched = log.receive()
            except OffsetOutOfRange as error:
                if error.log_start_offset <= offset:
                    raise
                offset = min(error.log_start_offset, end)
                copying.starts_at(offset)
                continue
            for batch in walk(fetched.records):
                if batch.base_offset >= end:
                    return
                view = fetched.records[batch.position : batch.position + batch.size]
                offset = batch.last_offset + 1
                copying.add(batch.base_offset, offset, batch.leader_epoch, bytes(view))
                deadline = time.monotonic() + cluster.timeout_s
            if time.monotonic() > deadline:
                raise Unavailable(f"{log.name}: no batch at offset {offset}, the log ends at {end}")


class StoredEvent(NamedTuple):
    """One event of a partition."""

    event_id: int
    timestamp: int
    metadata: bytes
    data: bytes


def read_events(cluster: Cluster, place: Place, start: int, end: int) -> Iterator[list[StoredEvent]]:
    """The events from id ``start`` up to ``end`` (exclusive), some at a time."""
    at = start
    while at < end:
        fed = _feed(cluster, place, at, end - at)
        metadata = _cut(fed.metadata, _numbers(fed.metadata_sizes))
        if not metadata:
            raise Unavailable(f"{place.topic}-{place.partition}: no event at id {at}, the log ends at {end}")
        data = _data(cluster, place, at, _cut(fed.descriptors, _numbers(fed.descriptor_sizes)))
        times = [time_ms for one in fed.times for time_ms in repeat(one.timestamp, one.count)]
        yield [StoredEvent(event_id, *one) for event_id, one in enumerate(zip(times, metadata, data, strict=True), at)]
        at += len(metadata)


def _event_batches(cluster: Cluster, place: Place, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Events from ``start`` up to ``end`` as batches: first id, end, bytes. A batch has one time."""
    for events in read_events(cluster, place, start, end):
        for timestamp, run in groupby(events, key=lambda one: one.timestamp):
            some = list(run)
            pieces = build_event_batch(
                [one.metadata for one in some], [[one.data] for one in some], now_ms=TimestampMs(timestamp)
            )
            batch = bytearray(b"".join(bytes(piece) for piece in pieces))
            _BASE.pack_into(batch, 0, some[0].event_id)
            yield some[0].event_id, some[-1].event_id + 1, bytes(batch)


def _feed(cluster: Cluster, place: Place, at: int, most: int) -> FeedEventsResponse:
    request = FeedEventsRequest(
        "",
        place.topic_id,
        place.partition,
        next_event_id=at,
        max_events=min(most, _FEED_EVENTS),
        max_bytes=_FEED_BYTES,
        max_wait_ms=1000,
    )

    def ask() -> FeedEventsResponse:
        connection = cluster.connection(cluster.leader(place.topic, place.partition).node_id)
        answer = connection.ask(request, FeedEventsResponse)
        if answer.error_code:
            _check_there(place, answer.error_code)
            raise error_of(answer.error_code, f"events of {place.topic}-{place.partition}", answer.error_message)
        if answer.first_event_id != at and answer.metadata_sizes:
            raise Rejected(f"{place.topic}-{place.partition}: event {at} was deleted while it was to be read; repeat")
        return FeedEventsResponse(
            times=answer.times,
            metadata_sizes=bytes(answer.metadata_sizes),
            metadata=_bytes(answer.metadata),
            descriptor_sizes=bytes(answer.descriptor_sizes),
            descriptors=_bytes(answer.descriptors),
        )

    return cluster.insist("events", ask, lambda: cluster.forget(place.topic))


def _data(cluster: Cluster, place: Place, at: int, descriptors: list[bytes]) -> list[bytes]:
    """The data of events that follow each other."""
    found: list[bytes] = []
    while len(found) < len(descriptors):
        first = len(found)
        wanted = [WantedEventData(at + first + place_of, one) for place_of, one in enumerate(descriptors[first:])]
        request = FetchEventDataRequest(place.topic_id, place.partition, max_bytes=_DATA_BYTES, events=wanted)

        def ask(request: FetchEventDataRequest = request) -> list[bytes]:
            connection = cluster.connection(cluster.leader(place.topic, place.partition).node_id)
            answer = connection.ask(request, FetchEventDataResponse)
            what = f"data of events of {place.topic}-{place.partition}"
            if answer.error_code:
                _check_there(place, answer.error_code)
                raise error_of(answer.error_code, what, answer.error_message)
            for one in answer.events:
                if one.error_code:
                    raise error_of(one.error_code, what)
            return _cut(answer.data, [one.size for one in answer.events])

        some = cluster.insist("data of events", ask, lambda: cluster.forget(place.topic))
        if not some:
            raise Unavailable(f"the data of event {at + first} of {place.topic}-{place.partition} are not given")
        found += some
    return found


def _check_there(place: Place, code: int) -> None:
    if code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise TopicReplaced(f"topic {place.topic} was deleted")


def _bytes(records: object) -> bytes:
    return bytes(records) if isinstance(records, bytes | bytearray | memoryview) else b""


def _cut(data: object, sizes: array[int] | list[int]) -> list[bytes]:
    whole, at, found = _bytes(data), 0, list[bytes]()
    for size in sizes:
        found.append(whole[at : at + size])
        at += size
    return found


def _numbers(data: bytes) -> array[int]:
    """Little-endian numbers of 32 bits."""
    numbers = array("I")
    numbers.frombytes(bytes(data))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers

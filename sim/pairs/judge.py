"""The judge of pairs. It knows no operation: it compares what clients know with what they read.

The broker lives; nothing is refused to open; no line of the log needs a person. Every acknowledged record is read back
in order, once, unless deletion, retention or compaction may have removed it; nothing is read that was never written.
No end of a log goes back. Look-ups by time and MAX_TIMESTAMP equal a naive search of what is read. What a group has
committed is what it was answered. A share group gets all that it has not finished, and nothing else (`sharing`).
``log verify`` finds nothing. Before all that, what waits has come to rest (`sim.pairs.resting`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.core.controller.topic_names import GROUP_METADATA, INTERNAL_TOPICS
from millstream.model.error_code import ErrorCode
from millstream.partition.events.records import as_records
from millstream.partition.read.list_offsets import EARLIEST, MAX_TIMESTAMP
from millstream.storage.chunks import ChunkDisk
from millstream.storage.verification.log import CORRUPT, Progress, find_logs, verify_log
from millstream.storage.verification.wal import settled, verify_wal, wal_offsets
from millstream.wire.batch import CONTROL, TRANSACTIONAL
from millstream.wire.records import ABORT, OVERHEAD_BYTES, batch_crc_ok, iter_records, marker_of, unpack_header
from sim.engine.local_storage import DATA_DIR
from sim.engine.violation import Violation
from sim.pairs.kinds import TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.pairs.truth import Truth
    from sim.pairs.world import World


class Read(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class Batch(NamedTuple):
    """A batch as a consumer gets it. ``end`` is exclusive."""

    base: int
    end: int
    producer_id: int
    attributes: int
    data: memoryview
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of aborted transactions of the response."""

    def records(self) -> Iterator[Read]:
        """Its records."""
        for one in iter_records(self.data):
            yield Read(one.offset, one.key, one.value, one.timestamp)


def judge(world: World) -> list[list[Read]]:
    """Judge each partition; what each has, by partition."""
    world.hear()
    world.check_replicas()
    found = [_judge(world, index) for index in range(len(world.controller.topics[TOPIC].partitions))]
    for name in INTERNAL_TOPICS & world.controller.topics.keys():
        _check_internal(world, name)
    if not world.truth_of(0, GROUP_METADATA).expires:
        for group, offset in world.committed.items():
            if (committed := world.committed_offset(group)) != offset:
                raise Violation(f"the group {group} has committed {committed}, and was answered {offset}")
    no_errors(world)
    return found


def no_errors(world: World) -> None:
    """No line of the broker's log needs a person."""
    for line in world.errors:
        if not any(one in line for one in world.expected):
            raise Violation(f"the broker's log says: {line}")


def _check_internal(world: World, name: str) -> None:
    """A topic of the broker itself can be read as a whole, and its end never goes back."""
    end = world.latest(0, name)
    _, start = world.list_offset(EARLIEST, 0, name)
    last = start
    for batch in _read(world, 0, start, name=name, committed=False):
        if batch.base < last and last > start:
            raise Violation(f"{name}: a batch starts at {batch.base}, and the one before it ends at {last}")
        last = batch.end
    if last < end and not world.truth_of(0, name).compacts:
        raise Violation(f"{name} ends at {end}, and is read up to {last}")


def _judge(world: World, index: int) -> list[Read]:
    truth, end = world.truth_of(index), world.latest(index)
    if truth.acknowledged and end <= max(truth.acknowledged):
        raise Violation(f"LATEST is {end}, and offset {max(truth.acknowledged)} was acknowledged")
    _, start = world.list_offset(EARLIEST, index)
    _check_start(truth, start)
    batches = list(_read(world, index, start, committed=False))
    expected = start
    for batch in batches:
        if batch.base > expected and not truth.compacts:
            raise Violation(f"a batch starts at {batch.base}, and the one before it ends at {expected}")
        if batch.base < expected and batch.base >= start and expected > start:
            raise Violation(f"a batch starts at {batch.base}, and the one before it ends at {expected}")
        expected = batch.end
    records = [one for batch in batches if not batch.attributes & CONTROL for one in batch.records()]
    records = [one for one in records if one.offset >= start]
    _check_records(truth, start, records)
    _check_committed(world, index, truth, start)
    _check_times(world, index, batches, start)
    world.sharing.drain(index, records)
    return records


def _check_start(truth: Truth, start: int) -> None:
    if start < truth.start:
        raise Violation(f"the log starts at {start}, and {truth.start} was answered")
    if start > truth.asked_start and not truth.expires:
        raise Violation(f"the log starts at {start}, and nothing after {truth.asked_start} was to be deleted")
    truth.start = truth.asked_start = max(start, truth.start)


def _check_records(truth: Truth, start: int, records: list[Read]) -> None:
    seen: dict[bytes, list[int]] = {}
    values = {one.value: one for one in truth.acknowledged.values()} | truth.unknown
    for one in records:
        written = values.get(one.value or b"")
        if written is None:
            raise Violation(f"offset {one.offset} has what no client wrote: {one.value!r}")
        if written.value in seen and written.value not in truth.repeated:
            raise Violation(f"offsets {seen[written.value]} and {one.offset} have the same record")
        seen.setdefault(written.value, []).append(one.offset)
        if truth.keeps_keys and one.key != written.key:
            raise Violation(f"offset {one.offset} has the key {one.key!r}, not {written.key!r}")
        if written.timestamp is not None and one.timestamp != written.timestamp:
            raise Violation(f"offset {one.offset} has the time {one.timestamp}, not {written.timestamp}")
    for offset, written in truth.acknowledged.items():
        if offset < start:
            continue
        if written.value not in seen:
            if not truth.may_be_gone(offset):
                raise Violation(f"the acknowledged offset {offset} is not there: {written.value[:40]!r}")
        elif offset not in seen[written.value]:
            raise Violation(f"the record of offset {offset} is at {seen[written.value]}")


def _check_committed(world: World, index: int, truth: Truth, start: int) -> None:
    """What a read_committed consumer returns."""
    seen: set[bytes] = set()
    for batch in _read(world, index, start, committed=True):
        aborted = {producer for producer, first in batch.aborted if first < batch.end}
        if batch.attributes & CONTROL or (batch.attributes & TRANSACTIONAL and batch.producer_id in aborted):
            continue
        seen |= {one.value or b"" for one in batch.records() if one.offset >= start}
    if wrong := seen & truth.aborted:
        raise Violation(f"a read_committed consumer reads what was aborted: {min(wrong)[:40]!r}")
    stable = world.serving(TOPIC, index).last_stable_offset
    for offset, written in truth.acknowledged.items():
        hidden = offset >= stable or written.value in truth.aborted or written.value in truth.open
        if offset >= start and not hidden and written.value not in seen and not truth.may_be_gone(offset):
            raise Violation(f"a read_committed consumer does not read offset {offset}: {written.value[:40]!r}")


def _check_times(world: World, index: int, batches: list[Batch], start: int) -> None:
    """Look-ups by time, compared with a search of everything; control records count or not."""
    every = [one for batch in batches for one in batch.records() if one.offset >= start]
    plain = [one for batch in batches if not batch.attributes & CONTROL for one in batch.records()]
    plain = [one for one in plain if one.offset >= start]
    times = sorted({one.timestamp for one in every if one.timestamp >= 0})
    newest = world.list_offset(MAX_TIMESTAMP, index)
    if newest not in (_newest(every), _newest(plain)):
        raise Violation(f"MAX_TIMESTAMP is {newest}, not {_newest(every)}")
    for at in {*times[:1], *times[-1:], *times[len(times) // 2 :][:1], 0, *(one + 1 for one in times[-1:])}:
        found = world.list_offset(at, index)
        if found not in (_first(every, at), _first(plain, at)):
            raise Violation(f"the first offset of time {at} is {found}, not {_first(every, at)}")


def _newest(records: list[Read]) -> tuple[int, int]:
    best = max((one.timestamp for one in records), default=-1)
    return (-1, -1) if best < 0 else next((best, one.offset) for one in records if one.timestamp == best)


def _first(records: list[Read], at: int) -> tuple[int, int]:
    return next(((one.timestamp, one.offset) for one in records if one.timestamp >= at), (-1, -1))


def _read(world: World, index: int, start: int, *, committed: bool, name: str = TOPIC) -> Iterator[Batch]:
    """Every batch, as a consumer reads them. Aborted transactions are those that are open at each batch."""
    offset = start
    partition = world.serving(name, index)
    active: set[tuple[int, int]] = set()
    while offset < (partition.last_stable_offset if committed else partition.high_watermark):
        found = world.fetch(offset, index, name, committed=committed)
        if found.error_code or found.data is None:
            raise Violation(f"offset {offset} of {name}/{index} can't be read: {ErrorCode(found.error_code).name}")
        if partition.config.has_events:
            data = memoryview(b"".join(as_records(found.data, partition.config.kafka_view)))
        else:
            data = memoryview(bytes(found.data.copy(0, len(found.data))))
        found.data.release()
        if not data:
            raise Violation(f"there is nothing at offset {offset} of {name}/{index}")
        active = {one[:2] for one in found.aborted or ()}
        at = 0
        while at < len(data):
            header = unpack_header(data, at)
            size = header[1] + OVERHEAD_BYTES
            one = data[at : at + size]
            if not batch_crc_ok(one):
                raise Violation(f"the batch at {header[0]} has wrong bytes")
            base, end, producer = header[0], header[0] + header[6] + 1, header[9]
            yield Batch(base, end, producer, header[5], one, tuple(active))
            if header[5] & CONTROL and marker_of(one)[0] == ABORT:
                ended = min((each for each in active if each[0] == producer), key=lambda each: each[1], default=None)
                active.discard(ended or (-1, -1))
            offset, at = max(offset, end), at + size


def verify(world: World) -> None:
    """``log verify`` on the files of the brokers, which are down."""
    known = world.controller.groups()
    for files in world.disks():
        disk, check = ChunkDisk(files), Progress()
        is_settled, waiting = settled(disk, DATA_DIR), dict[tuple[str, int], list[tuple[int, int]]]()
        for group, offsets in wal_offsets(disk, DATA_DIR).items():
            if group in known:
                topic, index = known[group]
                waiting[topic.topic_id.hex(), index] = offsets
        for one in find_logs(disk, DATA_DIR):
            mine = waiting.get((one.topic_id, one.partition), ())
            verify_log(disk, one, check, deep=True, settled=is_settled, waiting=mine)
        verify_wal(disk, DATA_DIR, check, str)
        if found := [one for one in check.findings if one.severity == CORRUPT]:
            raise Violation(f"log verify: {found[0]}")

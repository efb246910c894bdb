"""Is what a start found what was promised? The invariants of the storage, one function each.

================================  ======================================================================================
acked ⊆ recovered                 every log reaches what was acknowledged as committed; every vote that was promised
nothing phantom, dense offsets    each batch was given, stands at its offset with the bytes that were given, follows the
                                  one before; of a compacted log each record, and of each key the last one
indexes                           as a rebuild from the segment would make them
epochs                            as the batches say
producers                         as a replay of all batches, each duplicate recognised; fewer only where the batches
                                  were deleted
groups                            each offset is the last acknowledged commit, or one that was asked for after it
log start                         never before what was promised, never behind what was asked for
repairs                           of the kinds that follow from a crash, unless the disk lied
================================  ======================================================================================

`judge` changes nothing in the models; it gives back what was found, and `adopt` makes that the new truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.core.producer_state import Append, Duplicate
from millstream.errors import MillstreamError
from millstream.format.epochs import StoredControl, StoredVote, with_terms_begun
from millstream.format.names import parse_segment
from millstream.model.quantities import Offset
from millstream.model.replication import Term
from millstream.storage.segments.index import Growing, SegmentIndex, batches_from
from millstream.wire.records import iter_records, parse_header
from sim.engine.violation import Violation
from sim.storage.models import replayed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.partition.partition import Partition
    from millstream.storage.log.log import Log
    from sim.engine.disk import SimDisk
    from sim.storage.life import Life
    from sim.storage.models import Batch, OffsetsModel, TopicModel

AFTER_A_CRASH: Final = frozenset(("torn_wal", "torn_segment", "wal_replayed"))
"""Kinds of repairs that a crash alone explains."""

_READ_BYTES: Final = 50_000


class Found(NamedTuple):
    """What a start found of one topic."""

    batches: list[Batch]
    next_offset: int
    start: int
    vote: StoredVote
    controls: list[StoredControl]


class Findings(NamedTuple):
    """What a start found."""

    topics: dict[int, Found]
    offsets: dict[tuple[str, str], int]


def judge(life: Life, disk: SimDisk, topics: dict[int, TopicModel], offsets: OffsetsModel | None) -> Findings:
    """Hold what is there against the models.

    Raises:
        Violation: nothing explains it.
    """
    if life.report.faults:
        raise Violation(f"recovery reports {life.report.faults}")
    for repair in life.report.repairs:
        if repair.kind not in AFTER_A_CRASH:
            raise Violation(f"recovery repaired what no crash damages: {repair}")
    found: dict[int, Found] = {}
    for group, topic in topics.items():
        fault = life.fault(topic)
        if fault:
            raise Violation(f"{topic!r} is not served: {fault}")
        found[group] = judge_topic(life, disk, topic)
    return Findings(found, {} if offsets is None else judge_groups(life, topics, offsets))


def judge_topic(life: Life, disk: SimDisk, topic: TopicModel) -> Found:
    """The same for one log."""
    partition = life.partition(topic)
    log = partition.log
    if log.next_offset < topic.promised_end:
        raise Violation(f"{log!r}: {topic.promised_end} was promised")
    if not topic.start <= life.opened_at[topic.group] <= max(topic.asked_start, topic.start):
        raise Violation(f"{log!r}: the start may be {topic.start} to {topic.asked_start}")
    if log.raft.vote not in topic.votes:
        raise Violation(f"{log!r}: vote {log.raft.vote!r} of {topic.votes}")
    _controls(log, topic)
    if topic.internal:
        kept: list[Batch] = []
    elif topic.compacted:
        kept = _compacted(life, log, topic)
    else:
        kept = _plain(life, log, topic)
        _epochs(log, kept)
    if not topic.has_events:
        _indexes(disk, log)
    _producers(partition, kept)
    return Found(kept, log.next_offset, log.start_offset, log.raft.vote, list(log.raft.controls.entries))


def _controls(log: Log, topic: TopicModel) -> None:
    """Control entries are found in the order in which they were appended, the durable ones all, and the others as far
    as the batches behind them are there.
    """
    found = log.raft.controls.entries
    if found != topic.controls[: len(found)]:
        raise Violation(f"{log!r}: control entries {found}, {topic.controls} were appended")
    behind = sum(one.offset < log.next_offset for one in topic.controls)
    if len(found) < max(topic.promised_controls, behind):
        raise Violation(f"{log!r}: {len(found)} control entries of {topic.promised_controls} promised, {behind} inside")
    if any(one.term not in dict(log.raft.epochs) for one in found):
        raise Violation(f"{log!r}: epochs {log.raft.epochs} without a term of {found}")


# -- batches -----------------------------------------------------------------------------------------------------------


def read_all(life: Life, log: Log) -> Iterator[bytes]:
    """Every batch from the start on, as a consumer gets them."""
    shard = life.shard(log.group)
    offset = log.start_offset
    while offset < log.next_offset:
        found = log.read(Offset(offset), log.next_offset, _READ_BYTES, True)
        if found is None:
            found = shard.call(log.read_cold, offset, log.next_offset, _READ_BYTES, True)
        if isinstance(found, MillstreamError):
            raise Violation(f"{log!r} cannot be read at {offset}: {found.message}")
        assert found is not None
        data = bytes(found)
        found.release()
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
            yield data[at : at + size]
            offset = int.from_bytes(data[at : at + 8], "big") + int.from_bytes(data[at + 23 : at + 27], "big") + 1
            at += size
        if not data:
            raise Violation(f"{log!r} has nothing at {offset}")


def _plain(life: Life, log: Log, topic: TopicModel) -> list[Batch]:
    kept = [one for one in topic.batches if one.next <= log.start_offset]
    offset = log.start_offset
    for data in read_all(life, log):
        base = int.from_bytes(data[:8], "big")
        known = topic.batch_at(base)
        if base > offset or known is None:
            raise Violation(f"{log!r}: a batch at {base} where {offset} was due")
        if data != known.data:
            raise Violation(f"{log!r}: other bytes at {base}")
        kept.append(known)
        offset = known.next
    if offset != log.next_offset:
        raise Violation(f"{log!r}: batches end at {offset}")
    return kept


def _compacted(life: Life, log: Log, topic: TopicModel) -> list[Batch]:
    kept = [one for one in topic.batches if one.next <= log.next_offset]
    given: dict[int, tuple[bytes, bytes | None]] = {}
    for one in kept:
        given.update(enumerate(one.records, one.base))
    found: set[int] = set()
    end = log.start_offset
    for data in read_all(life, log):
        header = parse_header(memoryview(data))
        if header.base_offset < end and header.base_offset + header.last_offset_delta >= end and found:
            raise Violation(f"{log!r}: a batch at {header.base_offset} after {end}")
        end = header.base_offset + header.last_offset_delta + 1
        for record in iter_records(memoryview(data)):
            if given.get(record.offset) != (record.key, record.value):
                raise Violation(f"{log!r}: offset {record.offset} is not what was written there")
            found.add(record.offset)
    if end != max(log.next_offset, log.start_offset):
        raise Violation(f"{log!r}: batches end at {end}")
    last = {key: offset for offset, (key, _) in sorted(given.items()) if offset >= log.start_offset}
    for key, offset in last.items():
        if offset not in found and given[offset][1] is not None:
            raise Violation(f"{log!r}: the last value of {key!r}, offset {offset}, is lost")
    return kept


def _epochs(log: Log, kept: list[Batch]) -> None:
    seen: list[tuple[Term, Offset]] = []
    for one in kept:
        epoch = int.from_bytes(one.data[12:16], "big")
        if not seen or epoch > seen[-1][0]:
            seen.append((Term(epoch), Offset(one.base)))
    seen = [one for one in with_terms_begun(seen, log.raft.controls.entries) if one[1] < log.next_offset]
    if [one for one in log.leader_epochs if one[1] < log.next_offset] != seen:
        raise Violation(f"{log!r}: epochs {log.leader_epochs}, the batches say {seen}")


def _indexes(disk: SimDisk, log: Log) -> None:
    log.refresh()
    for segment in log.files.segments.all():
        if not segment.size_bytes:
            continue
        index = SegmentIndex.load(disk, segment.path, segment.base_offset)
        growing = Growing(SegmentIndex(segment.base_offset, index.generation), 0)
        file = disk.open(segment.path)
        starts: dict[int, tuple[int, int]] = {}
        for batch in batches_from(file, 0, file.size()):
            starts[batch.position] = (batch.base_offset, growing.summary(sealed=False).max_timestamp)
            growing.add(batch)
        made, known = growing.summary(sealed=False), segment.summary(sealed=False)
        name = parse_segment(segment.path.rpartition("/")[2])
        whole = (made.base_offset, made.size_bytes) == (known.base_offset, known.size_bytes)
        whole = whole and (made.end_offset == known.end_offset or bool(name and name[1]))  # compaction takes ends off
        # Times may cover batches that were cut off, never fewer.
        times = known.max_timestamp >= made.max_timestamp and known.min_timestamp <= made.min_timestamp
        if not whole or not times:
            raise Violation(f"{log!r}: {known} is known of a segment, a rebuild says {made}")
        for offset, position, stamp in zip(index.offsets, index.positions, index.timestamps, strict=True):
            if position not in starts or starts[position][0] != offset or stamp < starts[position][1]:
                raise Violation(f"{log!r}: index entry {offset} at {position}, {stamp}: {starts.get(position)}")


# -- what is derived ---------------------------------------------------------------------------------------------------


def _producers(partition: Partition, kept: list[Batch]) -> None:
    """Ask the recovered state what a producer would learn from it, and a replay of everything the same."""
    log, state = partition.log, partition.producers
    truth = replayed(kept)
    expected = {one[0]: one for one in truth.active()}
    actual = {one[0]: one for one in state.active()}
    last = {one.producer.id: one for one in kept}
    for number, found in actual.items():
        if found != expected.get(number):
            raise Violation(f"{log!r}: producer {number} is {found}, a replay says {expected.get(number)}")
    for number in expected.keys() - actual.keys():
        if last[number].base >= log.start_offset:
            raise Violation(f"{log!r}: producer {number} is not known, a replay says {expected[number]}")
    compacted = "compact" in log.config.cleanup_policy
    for one in kept:
        number, epoch, sequence = one.producer
        if number not in actual:
            continue
        count = one.next - one.base
        says, should = state.check(number, epoch, sequence, count), truth.check(number, epoch, sequence, count)
        excused = one.base < log.start_offset or (compacted and one is not last[number])
        if isinstance(says, Duplicate):
            # Where compaction took batches out, the last five reach further back.
            right = says.base_offset == one.base and (says == should or compacted)
        else:
            right = says == should or (excused and isinstance(should, Duplicate))
        if not right:
            raise Violation(f"{log!r}: a second copy of {one[:2]} of {one.producer} is {says}, not {should}")
    for number, (_, epoch, sequence, *_) in actual.items():
        if state.check(number, epoch, (sequence + 1) & 0x7FFF_FFFF, 1) is not Append:
            raise Violation(f"{log!r}: producer {number} cannot go on at {sequence + 1}")


def judge_groups(life: Life, topics: dict[int, TopicModel], model: OffsetsModel) -> dict[tuple[str, str], int]:
    """The offsets that groups committed."""
    wrong = life.load()
    if wrong:
        raise Violation(wrong)
    group = next(number for number, one in topics.items() if one.name.startswith("__"))
    committed = {name: life.committed(group, name) for name in {place[0] for place in model.asked}}
    found: dict[tuple[str, str], int] = {}
    for place, asked in model.asked.items():
        found[place] = committed[place[0]].get(place[1], -1)
        if found[place] not in asked:
            raise Violation(
                f"group {place[0]} has {found[place]} of {place[1]}; {asked[0]} was acked, then {asked[1:]}"
            )
    for name, offsets in committed.items():
        for topic in offsets:
            if (name, topic) not in model.asked:
                raise Violation(f"group {name} has an offset of {topic} that no client committed")
    return found


def adopt(findings: Findings, topics: dict[int, TopicModel], offsets: OffsetsModel) -> None:
    """What was found is what readers see: from now on it is promised."""
    for group, found in findings.topics.items():
        topic = topics[group]
        topic.batches = found.batches
        topic.promised_end = found.next_offset
        topic.start = topic.asked_start = found.start
        topic.votes = [found.vote]
        topic.controls = found.controls
        topic.promised_controls = len(found.controls)
    for place, offset in findings.offsets.items():
        offsets.found(place, offset)

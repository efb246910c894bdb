"""Reads the messages of a topic in steps that are bounded: by records, by bytes, by time.

::

    start ──► positions ──fetch a round──► batches ──merge by timestamp──► match ──► a step, with its cursor

A step ends after ``limit`` records that match, ``BYTES_MAX`` bytes of batches or of what was found in them,
``TIME_MAX_S`` seconds, or at the end of the partitions; its cursor has the next positions of each partition. A forward
step reads from offsets on. A backward step reads a window before offsets, as many of the newest records of each
partition as fit into its share, and gives all that match there; its cursor is the beginning of that window. A window
that bytes or time cut short says so, and has the positions that it reached, so no record is passed over in silence.

Records of aborted transactions, and markers, are left out unless ``everything`` is set; then they are marked. A batch
that cannot be decoded is one entry with the reason, and the step continues after it.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from millstream.client.aborted import AbortedProducers
from millstream.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from millstream.client.record_reader import RecordReader
from millstream.console.masks import Mask, Parts, masked
from millstream.console.payloads import Payload, read_payload
from millstream.console.registry import Registry
from millstream.errors import Rejected
from millstream.wire.errors import BatchError
from millstream.wire.messages.fetch import PartitionData
from millstream.wire.records import (
    ABORT,
    COMMIT,
    BatchHeader,
    Record,
    batch_crc_ok,
    iter_batches,
    iter_records,
    marker_of,
    parse_header,
)

LIMIT_MAX: Final = 500
BYTES_MAX: Final = 10 << 20
TIME_MAX_S: Final = 5.0
BACKWARD_WINDOW: Final = 5000
"""Offsets of a backward step with a filter. Without a filter the window is as large as the limit."""
_ROUND_BYTES: Final = 2 << 20
_POLL_S: Final = 0.1
_PAUSE_S: Final = 0.1


class Message(NamedTuple):
    """One record, or what stands in its place. ``mark`` is empty, ``transaction``, ``open``, ``aborted``, ``commit``,
    ``abort``, ``marker`` or ``unreadable``; of a mark that is no record the value says what it is.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Payload
    value: Payload
    headers: Sequence[tuple[str, Payload]]
    mark: str
    producer_id: int
    raw: Record | None

    @property
    def is_tombstone(self) -> bool:
        """A record with a key and without a value: compaction removes the key."""
        return self.raw is not None and self.raw.value is None and self.raw.key is not None


Match = Callable[[Message], bool]
Positions = Mapping[TopicPartition, int]


class Order(NamedTuple):
    """What a step reads. ``positions`` are where it starts or, ``backward``, what it ends before."""

    positions: Positions
    backward: bool
    limit: int
    match: Match | None
    everything: bool
    masks: Sequence[Mask] = ()


class Step(NamedTuple):
    """What a step found. ``cursor`` continues in the same direction, None at the end of it. ``stopped`` is ``records``,
    ``bytes``, ``time`` or ``end``. ``inside`` are the positions at which a window was cut short.
    """

    messages: list[Message]
    cursor: dict[TopicPartition, int] | None
    stopped: str
    scanned: int
    scanned_bytes: int
    inside: dict[TopicPartition, int] | None
    failure: str


class _Entry(NamedTuple):
    """A position that was passed, with the record there unless it is of no interest."""

    timestamp: int
    target: TopicPartition
    next_offset: int
    mark: str
    header: BatchHeader | None
    record: Record | None
    reason: str


def positions_at(
    cluster: Cluster, topic: str, partitions: Sequence[int], *, offset: int | None = None, time_ms: int | None = None
) -> dict[TopicPartition, int]:
    """Positions at an offset or a time, held within what each partition has; the first offsets without either."""
    targets = [(topic, partition) for partition in partitions]
    if not targets:
        return {}
    starts = cluster.list_offsets(dict.fromkeys(targets, EARLIEST))
    if offset is None and time_ms is None:
        return {target: starts[target].offset for target in targets}
    ends = end_positions(cluster, topic, partitions)
    if offset is not None:
        return {target: min(max(offset, starts[target].offset), ends[target]) for target in targets}
    assert time_ms is not None
    found = cluster.list_offsets(dict.fromkeys(targets, time_ms))
    return {target: found[target].offset if found[target].offset >= 0 else ends[target] for target in targets}


def end_positions(cluster: Cluster, topic: str, partitions: Sequence[int]) -> dict[TopicPartition, int]:
    """The ends (exclusive), beyond the last stable offset."""
    targets = [(topic, partition) for partition in partitions]
    found = cluster.list_offsets(dict.fromkeys(targets, LATEST)) if targets else {}
    return {target: found[target].offset for target in targets}


def read_step(cluster: Cluster, order: Order, registry: Registry | None) -> Step:
    """One step.

    Raises:
        Unavailable: no broker answers.
        Rejected: the topic does not exist, or the caller may not read it.
    """
    limit = max(1, min(order.limit, LIMIT_MAX))
    if not order.backward:
        return _read(cluster, order.positions, {}, limit, order, registry)
    targets = list(order.positions)
    topic = targets[0][0] if targets else ""
    firsts = positions_at(cluster, topic, [partition for _, partition in targets])
    window = limit if order.match is None else BACKWARD_WINDOW
    sizes = {target: max(end - firsts[target], 0) for target, end in order.positions.items()}
    shares = share(sizes, window)
    starts = {target: end - shares[target] for target, end in order.positions.items()}
    step = _read(cluster, starts, order.positions, BACKWARD_WINDOW, order, registry)
    cut = step.stopped in ("bytes", "time")
    dropped, kept = step.messages[:-limit], step.messages[-limit:]
    for message in dropped:  # of each partition the older ones, since each is read in order
        starts[message.topic, message.partition] = message.offset + 1
    left = any(starts[target] > firsts[target] for target in targets)
    return step._replace(
        messages=sorted(kept, key=lambda message: (message.timestamp_ms, message.offset), reverse=True),
        cursor=starts if left else None,
        inside=step.cursor if cut else None,
        stopped=step.stopped if cut else ("records" if left else "end"),
    )


def share(sizes: Mapping[TopicPartition, int], total: int) -> dict[TopicPartition, int]:
    """Divide ``total`` among partitions so that none gets more than its size and what small ones leave goes to
    others.
    """
    shares = dict.fromkeys(sizes, 0)
    hungry = sorted((target for target in sizes if sizes[target] > 0), key=lambda target: sizes[target])
    left = total
    for place, target in enumerate(hungry):
        part = -(-left // (len(hungry) - place))  # rounded up
        shares[target] = min(part, sizes[target], left)
        left -= shares[target]
    return shares


class _Progress:
    """A running step. ``reached`` is where each partition is read up to; it only grows."""

    def __init__(self, starts: Positions, ends: Positions, limit: int) -> None:
        self.reached = dict(starts)
        self.ends = ends
        self.limit = limit
        self.found: list[Message] = []
        self.scanned = 0
        self.scanned_bytes = 0
        self.held_bytes = 0
        """Keys and values of ``found``, decompressed."""
        self.failure = ""
        self.deadline = time.monotonic() + TIME_MAX_S

    def step(self, stopped: str) -> Step:
        cursor = None if stopped == "end" else dict(self.reached)
        return Step(self.found, cursor, stopped, self.scanned, self.scanned_bytes, None, self.failure)


def _read(
    cluster: Cluster, starts: Positions, ends: Positions, limit: int, order: Order, registry: Registry | None
) -> Step:
    """Read up to the last stable offsets and then, if everything is wanted, what open transactions hold back."""
    progress = _Progress(starts, ends, limit)
    stopped = _pass(cluster, progress, order, registry, read_committed=True)
    if stopped == "end" and order.everything:
        stopped = _pass(cluster, progress, order, registry, read_committed=False)
    return progress.step(stopped)


def _pass(
    cluster: Cluster, progress: _Progress, order: Order, registry: Registry | None, *, read_committed: bool
) -> str:
    """Read until a bound of the step; says which. Past the last stable offset transactions are open."""
    active = {target: at for target, at in progress.reached.items() if at < progress.ends.get(target, at + 1)}
    reader = RecordReader(cluster, active, read_committed=read_committed, max_wait_s=_POLL_S, max_bytes=_ROUND_BYTES)
    with reader:
        while reader.positions:
            streams: list[Iterator[_Entry]] = []
            readable: dict[TopicPartition, int] = {}
            for target, data in reader.fetch_round():
                progress.scanned_bytes += len(_records(data))
                end = data.last_stable_offset if read_committed else data.high_watermark
                readable[target] = end if end >= 0 else data.high_watermark
                streams.append(_entries(target, data, reader.positions[target], progress.ends.get(target)))
            progress.failure = reader.failure.message if reader.failure else ""
            for entry in heapq.merge(*streams, key=lambda entry: entry.timestamp):
                progress.reached[entry.target] = reader.positions[entry.target] = entry.next_offset
                if entry.mark == "transaction" and not read_committed:
                    entry = entry._replace(mark="open")
                if _takes(progress, entry, order, registry) and len(progress.found) >= progress.limit:
                    return "records"
                if progress.held_bytes >= BYTES_MAX:
                    return "bytes"
                if time.monotonic() > progress.deadline:
                    return "time"  # a small batch may hold very many records
            for target, end in readable.items():
                if reader.positions[target] >= min(end, progress.ends.get(target, end)):
                    del reader.positions[target]
            if reader.positions and progress.scanned_bytes >= BYTES_MAX:
                return "bytes"
            if reader.positions and time.monotonic() > progress.deadline:
                return "time"
            if reader.failure is not None:
                time.sleep(_PAUSE_S)  # the round ended at once, as a leader is missing
    return "end"


def _takes(progress: _Progress, entry: _Entry, order: Order, registry: Registry | None) -> bool:
    """Whether an entry is a message that was looked for; then it is among those found."""
    if entry.record is None and not entry.reason:
        return False
    if entry.mark in ("aborted", "commit", "abort", "marker") and not order.everything:
        return False
    progress.scanned += 1
    message = _message(entry, registry, order.masks)
    if order.match is not None and not order.match(message):
        return False
    progress.found.append(message)
    progress.held_bytes += message.key.size + message.value.size
    return True


def follow(
    cluster: Cluster, topic: str, partitions: Sequence[int], registry: Registry | None, masks: Sequence[Mask] = ()
) -> Iterator[Message | None]:
    """New messages as they arrive, with None at least twice a second. Never ends; close it."""
    with RecordReader(
        cluster, end_positions(cluster, topic, partitions), max_wait_s=0.4, max_bytes=_ROUND_BYTES
    ) as reader:
        last_refresh = time.monotonic()
        while True:
            streams = [_entries(target, data, reader.positions[target], None) for target, data in reader.fetch_round()]
            if reader.failure is not None:
                time.sleep(0.4)  # the round ended at once: the leader is being looked for
                if time.monotonic() - last_refresh > 2:
                    last_refresh = time.monotonic()
                    reader.refresh()
            for entry in heapq.merge(*streams, key=lambda entry: entry.timestamp):
                reader.positions[entry.target] = entry.next_offset
                if entry.record is not None and entry.mark in ("", "transaction"):
                    yield _message(entry, registry, masks)
            yield None


def _records(data: PartitionData) -> memoryview:
    records = data.records if data.records is not None else b""
    assert isinstance(records, bytes | bytearray | memoryview)
    return memoryview(records)


def _entries(target: TopicPartition, data: PartitionData, position: int, end: int | None) -> Iterator[_Entry]:
    """What a response has of a partition from ``position`` on, up to ``end`` (exclusive)."""
    aborted = AbortedProducers((entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or ())
    at = 0
    try:
        for batch in iter_batches(_records(data)):
            header = parse_header(batch)
            at = max(header.max_timestamp, 0)
            if header.next_offset <= position:
                continue
            if header.is_control:
                kind = marker_of(batch)[0]
                aborted.end(header.producer_id, header.last_offset, kind)
                mark = {COMMIT: "commit", ABORT: "abort"}.get(kind, "marker")
            elif not header.is_transactional:
                mark = ""
            else:
                covered = aborted.covers(header.producer_id, header.last_offset)
                mark = "aborted" if covered else "transaction"
            yield from _batch(target, batch, header, mark, position, end)
            if end is not None and header.next_offset >= end:
                return
            yield _Entry(at, target, header.next_offset, "", None, None, "")
            position = header.next_offset
    except BatchError as error:
        yield _Entry(at, target, position + 1, "unreadable", None, None, error.message)


def _batch(
    target: TopicPartition, batch: memoryview, header: BatchHeader, mark: str, position: int, end: int | None
) -> Iterator[_Entry]:
    try:
        if not batch_crc_ok(batch):
            raise BatchError("its checksum does not match")
        for record in iter_records(batch):
            if end is not None and record.offset >= end:
                return
            if record.offset >= position:
                yield _Entry(record.timestamp, target, record.offset + 1, mark, header, record, "")
    except BatchError as error:
        said = f"the batch from offset {header.base_offset} to {header.last_offset}: {error.message}"
        yield _Entry(max(header.max_timestamp, 0), target, header.next_offset, "unreadable", header, None, said)


def _message(entry: _Entry, registry: Registry | None, masks: Sequence[Mask]) -> Message:
    topic, partition = entry.target
    producer = entry.header.producer_id if entry.header is not None else -1
    offset = entry.record.offset if entry.record is not None else entry.next_offset - 1
    if entry.record is None or entry.mark in ("commit", "abort", "marker"):
        said = {"commit": "the transaction was committed", "abort": "the transaction was aborted"}
        text = entry.reason or said.get(entry.mark, "a control record")
        shown = Payload("marker", text, text, None)
        nothing = Payload("empty", "", "", None)
        return Message(topic, partition, offset, entry.timestamp, nothing, shown, (), entry.mark, producer, None)
    record = entry.record
    headers = tuple((name, read_payload(data)) for name, data in record.headers)
    parts = Parts(read_payload(record.key, registry), read_payload(record.value, registry), headers, record)
    if masks:
        parts = masked(parts, masks)
    return Message(
        topic,
        partition,
        offset,
        record.timestamp,
        parts.key,
        parts.value,
        parts.headers,
        entry.mark,
        producer,
        parts.raw,
    )


# Cursors


def held_within(cluster: Cluster, positions: Positions) -> dict[TopicPartition, int]:
    """Positions that are no later than the ends of their partitions."""
    ends = cluster.list_offsets(dict.fromkeys(positions, LATEST)) if positions else {}
    return {target: min(position, ends[target].offset) for target, position in positions.items()}


def cursor_text(positions: Positions) -> str:
    """Positions as ``0:12,1:40``, for an address."""
    return ",".join(f"{partition}:{offset}" for (_, partition), offset in sorted(positions.items()))


def read_cursor(topic: str, text: str) -> dict[TopicPartition, int]:
    """The positions of a cursor.

    Raises:
        Rejected: the text is not valid.
    """
    found: dict[TopicPartition, int] = {}
    for part in text.split(","):
        partition, colon, offset = part.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal() and len(partition) < 10 and len(offset) < 19):
            raise Rejected(f"{text[:100]!r} is no cursor: expected partition:offset, several with commas")
        found[topic, int(partition)] = int(offset)
    return found

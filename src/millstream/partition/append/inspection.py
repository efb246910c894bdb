"""Appends whose records have to be inspected first, in the order in which they came.

A topic with a codec of its own, a compacted one, one that bounds the age of its records, records for an event topic:
the shard's worker decompresses and checks their batches (``storage.processes.inspections``), and perhaps writes them
again (``wire.inspection``, ``format.events.from_records``). The reactor serves others while it waits. Verdicts are
acted on in the order of a partition's batches. While one is missing, every batch of that partition joins the row, even
if it needs no inspection. Sequence numbers of idempotent producers are checked when the batch is appended, as for any
other.

A small batch that is not compressed is inspected in place when nothing is before it: ``INLINE_RECORDS`` records take
less time than the way to the worker and back.

What waits here is bounded by ``storage.processes.inspections``; a batch beyond that joins the queue of
``append.admission``. A verdict for which there is no memory in the log is tried again before all producers. A
partition that is deleted and a shard that stops refuse what comes out of the row. A crash loses what was not appended,
of which no client has an acknowledgement.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from millstream.config.forms import INT64_MAX
from millstream.format.events.from_records import inspect
from millstream.partition.append.batch import Outcome
from millstream.partition.partition import Gate
from millstream.wire.batch import CODEC_MASK, HEADER_BYTES, unpack_header
from millstream.wire.compression import CODECS
from millstream.wire.inspection import AS_IT_CAME, Refused, Rules, TopicKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.config.topic_properties import TopicConfig
    from millstream.partition.append.batch import Batch, Done
    from millstream.partition.partition import Partition
    from millstream.shard.reactor import Reactor
    from millstream.storage.processes.inspections import Verdict
    from millstream.storage.shard_storage import ShardStorage

INLINE_RECORDS: Final = 32
INLINE_BYTES: Final = 64 << 10

_ORDER: Final = int(Gate.ORDER)


class _Entry:
    """One batch in the row of its partition."""

    __slots__ = ("done", "owner", "partition", "verdict")

    def __init__(self, owner: Inspection, partition: Partition, done: Done) -> None:
        self.owner = owner
        self.partition = partition
        self.done = done
        self.verdict: Verdict | None = None

    def judged(self, verdict: Verdict) -> None:
        """The worker has inspected the records."""
        self.verdict = verdict
        try:
            self.owner.advance(self.partition)
        except Exception as error:  # noqa: BLE001 - the boundary
            self.partition.failed("inspection", error)


class Inspection:
    """The rows of one shard.

    Invariant: a row that exists is not empty; its partition's ``gate`` has ``Gate.ORDER``.
    """

    def __init__(
        self,
        reactor: Reactor,
        storage: ShardStorage,
        append: Callable[[Partition, Sequence[memoryview], int], Outcome | None],
        retry: Callable[[Callable[[], bool]], None],
    ) -> None:
        """``append`` appends what was inspected, or returns None: no memory now. ``retry`` calls an attempt until it
        returns True.
        """
        self._reactor = reactor
        self._storage = storage
        self._append = append
        self._retry = retry
        self._rows: dict[Partition, deque[_Entry]] = {}
        self._blocked: set[Partition] = set()  # their first batch found no memory in the log

    def add(self, batch: Batch, done: Done) -> bool:
        """Have a batch inspected and appended; its views are copied before this returns. False: no room now."""
        partition, views, size = batch.partition, batch.views, batch.size
        rules = rules_of(partition.config, self._reactor.wall_ms())
        row = self._rows.get(partition)
        if row is None and size <= INLINE_BYTES:
            header = unpack_header(views[0] if len(views[0]) >= HEADER_BYTES else b"".join(views), 0)
            codec = header[5] & CODEC_MASK
            if not codec and rules.codec in (codec, AS_IT_CAME) and header[12] <= INLINE_RECORDS:
                return self._in_place(partition, b"".join(views), rules, done)
        entry = _Entry(self, partition, done)
        if not self._storage.inspections.start(views, size, rules, entry.judged):
            return False
        if row is None:
            row = self._rows[partition] = deque()
        row.append(entry)
        partition.gate |= _ORDER
        return True

    def _in_place(self, partition: Partition, batch: bytes, rules: Rules, done: Done) -> bool:
        """Inspect a small batch now."""
        try:
            stored = inspect(batch, rules) or batch
        except Refused as refused:
            done(Outcome(int(refused.code)), refused.refusal)
            return True
        outcome = self._append(partition, (memoryview(stored),), len(stored))
        if outcome is None:
            return False
        done(outcome, None)
        return True

    def advance(self, partition: Partition) -> None:
        """A verdict came: act on those at the head of the row."""
        if partition not in self._blocked and not self._drain(partition):
            self._blocked.add(partition)
            self._retry(lambda: self._try_again(partition))

    def _try_again(self, partition: Partition) -> bool:
        if not self._drain(partition):
            return False
        self._blocked.discard(partition)
        return True

    def _drain(self, partition: Partition) -> bool:
        """Append what was judged, in order, up to the first that was not; False: there is no memory for it."""
        row = self._rows.get(partition)
        while row:
            verdict = row[0].verdict
            if verdict is None:
                return True
            outcome: Outcome | None = Outcome(verdict.error)
            if (stored := verdict.batch) is not None:
                outcome = self._append(partition, stored.views(), len(stored))
                if outcome is None:
                    return False
                stored.release()
            entry = row.popleft()
            if not row:
                del self._rows[partition]
                partition.gate &= ~_ORDER
            entry.done(outcome, verdict.refusal)
        return True


def rules_of(config: TopicConfig, now_ms: int) -> Rules:
    """The rules of a topic for a batch that comes now."""
    codec = CODECS.get(config.compression_type, AS_IT_CAME)
    level: int | None = getattr(config, f"compression_{config.compression_type}_level", None)
    return Rules(
        codec,
        level,
        config.max_message_bytes,
        config.is_compacted,
        config.message_timestamp_type != "CreateTime",
        max(now_ms - config.message_timestamp_before_max_ms, -INT64_MAX),
        min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX),
        _kind(config),
    )


def _kind(config: TopicConfig) -> TopicKind:
    if not config.has_events:
        return TopicKind.RECORDS
    return TopicKind.ENCODED_EVENTS if "schema" in config.events_serializer else TopicKind.EVENTS

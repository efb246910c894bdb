"""Appends whose records have to be inspected first, in the order in which they came.

A topic with a codec of its own, a compacted one, one that bounds the age of its records, records for an event topic:
batches for these are opened by the shard's worker (``storage.processes.inspections``), judged, and perhaps written anew
(``wire.inspection``, ``format.events.from_records``), while the reactor goes on. Verdicts are acted on in the order of
the batches of their partition, and as long as one is out, every batch of that partition joins the row, whatever it
needs: an idempotent producer's sequence numbers are checked when a batch is appended, as for any other.

A small batch that is not compressed is inspected in place when nothing is before it: ``INLINE_RECORDS`` records take
less than the way to the worker and back.

What waits here is bounded by ``storage.processes.inspections``; beyond that an append waits like one for memory, in
``partition.delayed``, and its connection with it. A verdict for which there is no memory in the log is tried again
before all producers. A partition that is deleted and a shard that stops refuse what comes out of the row; a crash loses
what was not appended, and no client has an acknowledgement of it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from millstream.config.forms import INT64_MAX
from millstream.config.topic_properties import TopicConfig
from millstream.format.events.from_records import inspect
from millstream.partition.append import BUSY, Outcome, append
from millstream.partition.partition import Gate, Partition
from millstream.shard.reactor import Reactor
from millstream.storage.processes.inspections import Verdict
from millstream.storage.shard_storage import ShardStorage
from millstream.wire.batch import CODEC_MASK, HEADER_BYTES, unpack_header
from millstream.wire.compression import CODECS
from millstream.wire.inspection import AS_IT_CAME, Refusal, Refused, Rules, TopicKind

if TYPE_CHECKING:
    from millstream.partition.delayed import DelayedAppends

INLINE_RECORDS: Final = 32
INLINE_BYTES: Final = 64 << 10

Done = Callable[[Outcome, Refusal | None], None]
"""What became of an append; with a refusal, why."""


class _Entry:
    """One batch in the row of its partition."""

    __slots__ = ("done", "owner", "partition", "verdict")

    def __init__(self, owner: "InspectedAppends", partition: Partition, done: Done) -> None:
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


class InspectedAppends:
    """The rows of one shard.

    Invariant: a partition's ``gate`` has ``Gate.ORDER`` as long as its row is not empty.
    """

    def __init__(self, reactor: Reactor, storage: ShardStorage, delayed: "DelayedAppends") -> None:
        self._reactor = reactor
        self._storage = storage
        self._delayed = delayed
        self._blocked: set[Partition] = set()  # their first batch found no memory in the log

    def add(self, partition: Partition, views: Sequence[memoryview], size: int, done: Done) -> bool:
        """Have a batch inspected and appended; ``views`` are copied before this returns. False: no room now."""
        now_ms = self._reactor.wall_ms()
        rules = rules_of(partition.config, now_ms)
        if not partition.inspecting and size <= INLINE_BYTES:
            header = unpack_header(views[0] if len(views[0]) >= HEADER_BYTES else b"".join(views), 0)
            codec = header[5] & CODEC_MASK
            if not codec and rules.codec in (codec, AS_IT_CAME) and header[12] <= INLINE_RECORDS:
                return self._here(partition, b"".join(views), rules, now_ms, done)
        entry = _Entry(self, partition, done)
        if not self._storage.inspections.start(views, size, rules, entry.judged):
            return False
        partition.inspecting.append(entry)
        partition.gate |= Gate.ORDER
        return True

    def _here(self, partition: Partition, batch: bytes, rules: Rules, now_ms: int, done: Done) -> bool:
        """Look at a small batch now."""
        try:
            stored = inspect(batch, rules) or batch
        except Refused as refused:
            done(Outcome(int(refused.code)), refused.refusal)
            return True
        outcome = self._append(partition, (memoryview(stored),), len(stored), now_ms)
        if outcome is BUSY:
            return False
        done(outcome, None)
        return True

    def _append(self, partition: Partition, views: Sequence[memoryview], size: int, now_ms: int) -> Outcome:
        accepts = self._storage.accepts_writes and not self._storage.stopping
        return append(partition, views, size, now_ms, accepts_writes=accepts, inspected=True, transactional=True)

    def advance(self, partition: Partition) -> None:
        """A verdict came: act on those at the head of the row."""
        if partition not in self._blocked and not self._drain(partition):
            self._blocked.add(partition)
            self._delayed.add_own(lambda: self._try_again(partition))

    def _try_again(self, partition: Partition) -> bool:
        if not self._drain(partition):
            return False
        self._blocked.discard(partition)
        return True

    def _drain(self, partition: Partition) -> bool:
        """Append what was judged, in order, up to the first that was not; False: there is no memory for it."""
        row = partition.inspecting
        while row:
            entry = row[0]
            assert isinstance(entry, _Entry)
            verdict = entry.verdict
            if verdict is None:
                return True
            outcome = Outcome(verdict.error)
            if verdict.batch is not None:
                batch = verdict.batch
                outcome = self._append(partition, batch.views(), len(batch), self._reactor.wall_ms())
                if outcome is BUSY:
                    return False
                batch.release()
            row.popleft()
            if not row:
                partition.set_gate()
            entry.done(outcome, verdict.refusal)
        return True


def rules_of(config: TopicConfig, now_ms: int) -> Rules:
    """What a topic wants of a batch that comes now."""
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

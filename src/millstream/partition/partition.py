"""A partition on its home shard: the record of its parts, and what happens when its high watermark moves.

Each verb has a file of its own: ``append`` puts a batch in, ``inspecting`` has its records inspected first where that
is wanted, ``read`` takes batches out. This file only holds the state they share and the one event that links them: a
commit. It answers the produce calls that the commit covers, in order, and wakes the fetches that wait for data.

A partition that is closed (its topic was deleted) answers everything that waits with UNKNOWN_TOPIC_OR_PARTITION and
refuses what comes later. A partition whose log is faulty (corruption inside its durable prefix) is never opened:
requests for it get KAFKA_STORAGE_ERROR, and the log line of the recovery names the file and offset.
"""

from collections import deque
from collections.abc import Callable
from enum import IntFlag
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NewType, Protocol

from millstream.config.forms import INT64_MAX
from millstream.config.topic_properties import TopicConfig
from millstream.core.controller.topic_names import INTERNAL_TOPICS
from millstream.core.overtaking import Overtaking
from millstream.core.producer_state import ProducerState
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    RaftGroupId,
    Sequence,
    SlotIndex,
)
from millstream.model.replication import NO_REPLICA
from millstream.partition.meters import Meters
from millstream.raft.group import Group, GroupRole

if TYPE_CHECKING:
    from millstream.model.quantities import Offset
    from millstream.storage.log.log import Log
    from millstream.tiers.partition_archive import PartitionArchive


class AckWaiter(Protocol):
    """A produce call that waits for one or more partitions."""

    def acked(self, slot: SlotIndex) -> None:
        """The batch in ``slot`` of the call is committed."""
        ...

    def failed(self, slot: SlotIndex, error: ErrorCode) -> None:
        """The batch in ``slot`` will never be committed here."""
        ...

    def expire(self, now_us: int) -> None:
        """Time went by without a commit; answer if it is too late."""
        ...


Acks = NewType("Acks", int)
"""What a producer waits for: nothing (0), the leader's disk (1), a majority (`ALL`)."""

ALL: Final = Acks(-1)

GAPS_MS: Final = 30_000
"""As long as Kafka's clients wait for the answer of a broker: by then each has sent again what was refused."""

Ack = tuple[int, AckWaiter, int]
"""A batch whose acknowledgement waits: its end offset (exclusive), the call, its slot in the call."""


class OwnAppends(Protocol):
    """Appends of the broker that wait for memory (``partition.delayed``)."""

    @property
    def own_waits(self) -> bool:
        """One of them waits; later ones have to wait behind it."""
        ...

    def add_own(self, attempt: Callable[[], bool]) -> None:
        """Call ``attempt`` until it returns True."""
        ...


def own_append(delayed: OwnAppends | None, attempt: Callable[[], bool]) -> None:
    """Do one of the broker's own appends now, or in its turn when there is memory; without ``delayed`` once, now.
    ``attempt`` returns False while there is no memory.
    """
    if delayed is None:
        attempt()
    elif delayed.own_waits or not attempt():
        delayed.add_own(attempt)


class Inspecting(Protocol):
    """A batch whose records are being inspected (``partition.inspecting``)."""


class Gate(IntFlag):
    """Why a batch is not simply appended. A partition's ``gate`` is 0 for most, so that asking costs nothing."""

    CLOSED = 1
    INTERNAL = 2
    CODEC = 4
    """The topic has a codec of its own."""
    RECORDS = 8
    """The topic wants something of its records that the header of a batch cannot tell."""
    ORDER = 16
    """Batches before this one are being inspected: it must not overtake them."""
    FOLLOWING = 32
    """Another replica leads, or none."""
    EVENTS = 64
    """It is an event topic: batches of events only, and read by feeds."""
    SHARED = 128
    """It is a shared topic: nothing is taken while too much is not uploaded."""
    FAILED = 256
    """A verb has raised what no verb raises (``partition.boundary``)."""


class Opened(NamedTuple):
    """Where the log ended when the partition was opened: offset, and position in the log's stream of bytes."""

    end_offset: int
    position: int


def _nothing(_partition: "Partition") -> None:
    """Nothing is counted."""


def _asks_of_records(config: TopicConfig) -> bool:
    bounded = config.message_timestamp_type == "CreateTime" and config.message_timestamp_before_max_ms < INT64_MAX
    return config.is_compacted or bounded


class DataWaiter(Protocol):
    """A fetch that waits for the high watermark to move."""

    def wake(self, raft_group: RaftGroupId) -> None:
        """Data arrived in the partition of ``raft_group``, or it closed. Said once; watch again to hear again."""
        ...


class Refusable(Protocol):
    """A request that is answered later (``partition.asked``)."""

    def refuse(self) -> None:
        """Answer that the partition has failed."""
        ...


class Partition:
    """State of one partition.

    Lifecycle: built when the topic appears on this shard, closed when the topic is deleted or the shard stops.
    Shard: its home shard only.
    Invariants: ``high_watermark`` never moves back; ``acks`` and ``own_acks`` are sorted by end offset, and all that
    they hold was appended in the term in which this replica leads now: `resign` empties them.
    """

    __slots__ = (
        "acks",
        "archive",
        "asked",
        "batch_bytes_max",
        "closed",
        "config",
        "data_waiters",
        "delayed",
        "fetched_bytes",
        "gaps_until_ms",
        "gate",
        "group",
        "high_watermark",
        "in_sync",
        "index",
        "inspecting",
        "internal",
        "log",
        "meters",
        "name",
        "on_transaction_ended",
        "opened_at",
        "overtaking",
        "own_acks",
        "producers",
        "raft_group",
        "recount",
        "refusal",
        "topic_id",
        "transactions",
        "trims",
    )

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        index: int,
        raft_group: RaftGroupId,
        log: "Log",
        group: Group,
        config: TopicConfig,
        producers: ProducerState,
        meters: Meters,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.index = index
        self.raft_group = raft_group
        self.log = log
        self.group = group
        self.config = config
        self.producers = producers
        self.transactions = producers.transactions
        self.on_transaction_ended: Callable[[int, bool], None] | None = None
        """Called with (producer id, whether it committed) when a marker is committed; set by who keeps state in this
        partition.
        """
        self.meters = meters
        self.internal = name.startswith("__")
        self.closed = False
        leads = group.role is GroupRole.LEADING
        self.refusal = ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER
        """Answer to a client that asks for anything: NONE while this replica leads. With ``gate`` its role."""
        self.inspecting: deque[Inspecting] = deque()  # batches whose records are being inspected, in order
        self.gate = 0
        self.set_gate()
        self.high_watermark = group.high_watermark
        self.opened_at = Opened(0, 0)
        """Set by ``partition.lifecycle`` when the log was opened; what was appended since is counted from here."""
        self.fetched_bytes = 0
        """Of batches handed to readers since the partition was opened; only ``partition.read`` adds to it."""
        self.acks: deque[Ack] = deque()
        """Who waits for the high watermark."""
        self.own_acks: deque[Ack] | None = None
        """Who waits only for this replica's own disk (acks=1). None for a sole voter, whose disk is the quorum."""
        self.in_sync = 1
        """Replicas in sync, this one among them; kept by ``partition.in_sync`` while this one leads."""
        self.recount: Callable[[Partition], None] = _nothing
        """Brings ``in_sync`` up to date; set by ``partition.in_sync`` when this replica leads."""
        self.gaps_until_ms = 0
        """Wall clock until which batches may come with a gap before them; see ``expect_gaps``."""
        self.overtaking = Overtaking()
        """Unknown producers until then, some of whose first batches may have been refused."""
        self.trims: list[tuple[int, Callable[[ErrorCode], None]]] = []
        """Callers that wait for a log start at least so high; they get NONE, or why it does not come."""
        self.data_waiters: set[DataWaiter] = set()
        self.asked: set[Refusable] = set()
        """Requests under way; each takes itself out when it is answered (``partition.asked``)."""
        self.delayed: OwnAppends | None = None  # where the broker's own appends wait for memory
        self.archive: PartitionArchive | None = None
        """What of the log is in the object store; None if its topic is not tiered. Set by ``partition.lifecycle``."""
        group.events.on_commit = self.on_commit
        log.on_trimmed = self.trimmed

    def set_gate(self) -> None:
        """Work out anew what a producer's batch is asked before it is appended: something of the below changed."""
        self.batch_bytes_max = min(self.config.max_message_bytes, self.config.segment_bytes)
        self.gate = int(
            (Gate.CLOSED if self.closed else 0)
            | (Gate.INTERNAL if self.name in INTERNAL_TOPICS else 0)
            | (Gate.CODEC if self.config.compression_type != "producer" else 0)
            | (Gate.RECORDS if _asks_of_records(self.config) else 0)
            | (Gate.ORDER if self.inspecting else 0)
            | (Gate.FOLLOWING if self.refusal is ErrorCode.NOT_LEADER_OR_FOLLOWER else 0)
            | (Gate.EVENTS if self.config.has_events else 0)
            | (Gate.SHARED if self.config.storage_mode == "shared" else 0)
            | (Gate.FAILED if self.has_failed else 0)
        )

    def expect_gaps(self, now_ms: int) -> None:
        """Batches were refused that their producers send again, here or by the leader before: those behind them may
        arrive first. ``now_ms`` is the wall clock.
        """
        self.gaps_until_ms = now_ms + GAPS_MS
        self.overtaking.clear()

    def expects_gaps(self, now_ms: int) -> bool:
        """Whether batches may come with a gap before them. A wall clock that was set back in between ends it."""
        return 0 < self.gaps_until_ms - now_ms <= GAPS_MS

    def overtakes(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, base_sequence: Sequence) -> bool:
        """Whether the batch may have overtaken the first one of its producer; asked while gaps are expected."""
        known = self.producers.epoch_of(producer_id) is not None
        return not known and self.overtaking.refuses(producer_id, producer_epoch, base_sequence)

    @property
    def lacks_replicas(self) -> bool:
        """Whether fewer replicas are in sync than acks=all wants: min.insync.replicas, or all that there are. What was
        counted some time ago is counted again before the answer is yes.
        """
        wanted = self.config.min_insync_replicas
        if wanted <= 1 or self.in_sync >= (wanted := min(wanted, self.group.voters)):
            return False
        if self.refusal is not ErrorCode.NONE:
            return False  # the append answers that this replica does not lead
        self.recount(self)
        return self.in_sync < wanted

    @property
    def leader_epoch(self) -> int:
        """The term of the group, as clients see it."""
        return self.group.term

    @property
    def log_start_offset(self) -> int:
        return self.log.start_offset

    @property
    def last_stable_offset(self) -> int:
        """End (exclusive) of what a read_committed reader may see: where the oldest transaction begins that has not
        ended, without one the high watermark.
        """
        high_watermark = self.high_watermark
        if not self.transactions.unstable:
            return high_watermark
        first = self.transactions.first_unstable(Offset(high_watermark))
        # Its records may have been deleted (DeleteRecords).
        return high_watermark if first < 0 else max(min(first, high_watermark), self.log.start_offset)

    def first_unstable(self) -> int:
        """First offset of the oldest transaction that has not ended, -1 if there is none."""
        return self.transactions.first_unstable(Offset(self.high_watermark)) if self.transactions.unstable else -1

    def on_commit(self, high_watermark: int) -> None:
        """Produce 8/8. The high watermark moved: answer what it covers, wake who waits for data."""
        self.high_watermark = high_watermark
        if self.transactions.unstable and self.log.committed is None:
            self.transactions.committed(Offset(high_watermark))
        acks = self.acks
        while acks and acks[0][0] <= high_watermark:
            _, call, slot = acks.popleft()
            call.acked(slot)
        if self.data_waiters:
            self.wake_readers()

    def on_synced(self, end_offset: "Offset") -> None:
        """This replica's disk has everything below ``end_offset``, or clients may see it: answer acks=1."""
        own = self.own_acks
        while own and own[0][0] <= end_offset:
            _, call, slot = own.popleft()
            call.acked(slot)

    def park(self, ack: Ack, *, own_sync: bool) -> None:
        """The batch of ``ack`` was appended and may not be seen yet: acknowledge it when it may be; with ``own_sync``
        when it is on this replica's disk.
        """
        own = self.own_acks
        if not own_sync or own is None:
            self.acks.append(ack)
        elif ack[0] <= self.log.durable_offset:
            ack[1].acked(ack[2])
        else:
            own.append(ack)

    def serving(self, current_leader_epoch: LeaderEpoch) -> ErrorCode:
        """NONE if this replica may answer a client; the client's idea of the leader epoch is behind (fenced) or ahead
        (unknown) of the group's, -1 for no idea. Kafka's order: the epoch first, then who leads.
        """
        if not self.closed and current_leader_epoch not in (-1, self.group.term):
            fenced = current_leader_epoch < self.group.term
            return ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH
        return self.refusal

    @property
    def serves_near(self) -> bool:
        """Whether a consumer that was sent here may read from this replica, which follows (KIP-392): it hears a leader,
        has lost nothing, and its topic is plain.
        """
        plain = not self.internal and self.archive is None and not self.gate & Gate.EVENTS
        return plain and self.group.leader != NO_REPLICA and not self.log.lost

    def lead(self) -> None:
        """This replica leads from now on. A majority has elected it, and is in sync until its peers have answered; all
        are of a log without records.
        """
        assert not self.acks and not self.own_acks, "acknowledgements of an earlier leadership wait"
        self.refusal = ErrorCode.NONE
        voters = self.group.voters
        self.in_sync = voters // 2 + 1 if self.log.next_offset else voters
        self.transactions.leads()
        self.set_gate()

    def resign(self) -> None:
        """This replica leads no more: the outcome of what is not committed is unknown. Comes before anything else that
        the loss brings, so that a later leader's commit never acknowledges a batch that it replaced.
        """
        if self.closed:
            return
        self.refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.set_gate()
        self._fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def trimmed(self) -> None:
        """The log start has moved: tell who waits for it, and fetch sessions."""
        start = self.log.start_offset
        self.transactions.trim(start)
        if self.archive is not None:
            self.archive.trimmed()
        waiting, self.trims = self.trims, []
        for wanted, done in waiting:
            if wanted <= start:
                done(ErrorCode.NONE)
            else:
                self.trims.append((wanted, done))
        self.wake_readers()

    @property
    def has_failed(self) -> bool:
        """Whether the boundary has ended the partition."""
        return self.refusal is ErrorCode.KAFKA_STORAGE_ERROR

    def failed(self, verb: str, error: Exception) -> None:
        """A verb has raised what no verb raises; see ``OpenLog.failed``."""
        self.log.failed(verb, error)

    def fail(self) -> None:
        """Refuse everything from now on; who waits is answered later (``waiting``)."""
        self.closed = True
        self.refusal = ErrorCode.KAFKA_STORAGE_ERROR
        self.gate |= Gate.FAILED | Gate.CLOSED

    def waiting(self) -> list[Callable[[], None]]:
        """Take everyone who waits. Each call answers one, who must be answered even if another cannot be. The outcome
        of what was appended is unknown.
        """
        acks, self.acks = [*self.acks, *(self.own_acks or ())], deque()
        if self.own_acks is not None:
            self.own_acks = deque()
        trims, self.trims = self.trims, []
        waiters, self.data_waiters = self.data_waiters, set()
        unknown = ErrorCode.REQUEST_TIMED_OUT
        answers = [partial(call.failed, slot, unknown) for _, call, slot in acks]
        answers += [partial(done, unknown) for _, done in trims]
        answers += [partial(waiter.wake, self.raft_group) for waiter in waiters]
        answers += [asked.refuse for asked in self.asked]
        return answers

    def _fail_waiters(self, error: ErrorCode) -> None:
        acks, self.acks = self.acks, deque()
        if self.own_acks is not None:
            acks += self.own_acks
            self.own_acks = deque()
        for _, call, slot in acks:
            call.failed(slot, error)
        trims, self.trims = self.trims, []
        for _, done in trims:
            done(error)
        self.wake_readers()

    def wake_readers(self) -> None:
        """Tell everyone who waits for data, once."""
        waiters, self.data_waiters = self.data_waiters, set()
        for waiter in waiters:
            waiter.wake(self.raft_group)

    def close(self, error: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> None:
        """Answer everything that waits; the log is closed or deleted by the caller."""
        self.closed = True
        self.refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.set_gate()
        self._fail_waiters(error)

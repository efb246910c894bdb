"""A partition on its home shard: the record of its parts, and what happens when its high watermark moves.

Each verb has a file of its own: ``append.checks`` puts a batch in, ``read.batches`` takes batches out. This file only
holds the state they share and the one event that links them: a commit. It answers the produce calls that the commit
covers, in order, and wakes the fetches that wait for data.

A partition that is closed (its topic was deleted) answers everything that waits with UNKNOWN_TOPIC_OR_PARTITION and
refuses what comes later. A partition whose log is faulty (corruption inside its durable prefix) is never opened:
requests for it get KAFKA_STORAGE_ERROR, and the log line of the recovery names the file and offset.
"""

from collections.abc import Callable
from enum import IntFlag
from typing import TYPE_CHECKING, Final, NamedTuple, NewType, Protocol

from millstream.config.forms import INT64_MAX
from millstream.config.topic_properties import TopicConfig
from millstream.core.controller.topic_names import INTERNAL_TOPICS
from millstream.core.overtaking import Overtaking
from millstream.core.producer_state import ProducerState
from millstream.core.txn.partition_state import PartitionTransactions
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import (
    LeaderEpoch,
    Offset,
    RaftGroupId,
)
from millstream.model.replication import NO_REPLICA
from millstream.partition.meters import Meters
from millstream.partition.waiters import Ack, Waiters
from millstream.raft.group import Group, GroupRole

if TYPE_CHECKING:
    from millstream.storage.log.log import Log
    from millstream.tiers.partition_archive import PartitionArchive


Acks = NewType("Acks", int)
"""What a producer waits for: nothing (0), the leader's disk (1), a majority (`ALL`)."""

ALL: Final = Acks(-1)


class OwnAppends(Protocol):
    """Appends of the broker that wait for memory (``partition.append.admission``)."""

    @property
    def own_waits(self) -> bool:
        """One of them waits; later ones have to wait behind it."""
        ...

    def add_own(self, attempt: Callable[[], bool]) -> None:
        """Call ``attempt`` until it returns True."""
        ...


def own_append(admission: OwnAppends | None, attempt: Callable[[], bool]) -> None:
    """Do one of the broker's own appends now, or in its turn when there is memory; without ``admission`` once, now.
    ``attempt`` returns False while there is no memory.
    """
    if admission is None:
        attempt()
    elif admission.own_waits or not attempt():
        admission.add_own(attempt)


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


class SyncedReplicas:
    """How many replicas are in sync, this one among them; kept by ``replica.in_sync`` while this one leads."""

    __slots__ = ("count", "recount")

    def __init__(self) -> None:
        self.count = 1
        self.recount: Callable[[Partition], None] = _nothing
        """Brings ``count`` up to date; set when this replica leads."""


class Partition:
    """State of one partition.

    Lifecycle: built when the topic appears on this shard, closed when the topic is deleted or the shard stops.
    Shard: its home shard only.
    Invariants: ``high_watermark`` never moves back. All batches whose acknowledgements wait were appended in the term
    in which this replica leads now: `resign` answers those of a leadership that has ended.
    """

    __slots__ = (
        "admission",
        "archive",
        "batch_bytes_max",
        "config",
        "fetched_bytes",
        "gaps",
        "gate",
        "group",
        "high_watermark",
        "index",
        "log",
        "meters",
        "name",
        "opened_at",
        "producers",
        "raft_group",
        "refusal",
        "replicas",
        "topic_id",
        "waiters",
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
        self.meters = meters
        leads = group.role is GroupRole.LEADING
        self.refusal = ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER
        """Answer to a client that asks for anything: NONE while this replica leads. With ``gate`` its role."""
        self.gate = 0
        self.set_gate()
        self.high_watermark = group.high_watermark
        self.opened_at = Opened(0, 0)
        """Set by ``partition.lifecycle`` when the log was opened; what was appended since is counted from here."""
        self.fetched_bytes = 0
        """Of batches handed to readers since the partition was opened; only ``partition.read`` adds to it."""
        self.waiters = Waiters()
        self.replicas = SyncedReplicas()
        self.gaps = Overtaking()
        self.admission: OwnAppends | None = None
        """Where the broker's own appends wait for memory."""
        self.archive: PartitionArchive | None = None
        """What of the log is in the object store; None if its topic is not tiered. Set by ``partition.lifecycle``."""
        group.events.on_commit = self.on_commit
        log.owner.on_trimmed = self.trimmed

    def set_gate(self) -> None:
        """Work out again what a producer's batch is asked before it is appended: something of the below changed."""
        self.batch_bytes_max = min(self.config.max_message_bytes, self.config.segment_bytes)
        self.gate = int(
            (Gate.CLOSED if self.closed else 0)
            | (Gate.INTERNAL if self.name in INTERNAL_TOPICS else 0)
            | (Gate.CODEC if self.config.compression_type != "producer" else 0)
            | (Gate.RECORDS if _asks_of_records(self.config) else 0)
            | (self.gate & Gate.ORDER)  # of `append.inspection`
            | (Gate.FOLLOWING if self.refusal is ErrorCode.NOT_LEADER_OR_FOLLOWER else 0)
            | (Gate.EVENTS if self.config.has_events else 0)
            | (Gate.SHARED if self.config.storage_mode == "shared" else 0)
            | (Gate.FAILED if self.has_failed else 0)
        )

    @property
    def lacks_replicas(self) -> bool:
        """Whether fewer replicas are in sync than acks=all wants: min.insync.replicas, or all that there are. What was
        counted some time ago is counted again before the answer is yes.
        """
        wanted = self.config.min_insync_replicas
        if wanted <= 1 or self.replicas.count >= (wanted := min(wanted, self.group.voters)):
            return False
        if self.refusal is not ErrorCode.NONE:
            return False  # the append answers that this replica does not lead
        self.replicas.recount(self)
        return self.replicas.count < wanted

    @property
    def transactions(self) -> PartitionTransactions:
        """The transactions of the partition's producers."""
        return self.producers.transactions

    @property
    def closed(self) -> bool:
        """Whether the topic was deleted, the shard stops, or the partition has failed."""
        return self.refusal in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR)

    @property
    def leader_epoch(self) -> int:
        """The term of the group, as clients see it."""
        return self.group.term

    @property
    def log_start_offset(self) -> int:
        return self.log.start_offset

    @property
    def last_stable_offset(self) -> int:
        """End (exclusive) of what a read_committed reader may see: the first offset of the oldest transaction that has
        not ended, without one the high watermark.
        """
        high_watermark = self.high_watermark
        transactions = self.producers.transactions
        if not transactions.unstable:
            return high_watermark
        first = transactions.first_unstable(Offset(high_watermark))
        # Its records may have been deleted (DeleteRecords).
        return high_watermark if first < 0 else max(min(first, high_watermark), self.log.start_offset)

    def first_unstable(self) -> int:
        """First offset of the oldest transaction that has not ended, -1 without one."""
        return self.transactions.first_unstable(Offset(self.high_watermark)) if self.transactions.unstable else -1

    def on_commit(self, high_watermark: Offset) -> None:
        """Produce 8/8. The high watermark moved: answer what it covers, wake who waits for data."""
        self.high_watermark = high_watermark
        if self.transactions.unstable and self.log.owner.committed is None:
            self.transactions.committed(high_watermark)
        waiters = self.waiters
        waiters.committed(high_watermark)
        if waiters.readers:
            waiters.wake_readers()

    def park(self, ack: Ack, *, own_sync: bool) -> None:
        """The batch of ``ack`` was appended and may not be seen yet: acknowledge it when it may be; with ``own_sync``
        when it is on this replica's disk.
        """
        own = self.waiters.own_acks
        if not own_sync or own is None:
            self.waiters.acks.append(ack)
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
        """Whether a consumer that was sent here may read from this replica, which follows (KIP-392): it has a leader,
        has lost nothing, and its topic is plain.
        """
        plain = not self.name.startswith("__") and self.archive is None and not self.gate & Gate.EVENTS
        return plain and self.group.leader != NO_REPLICA and not self.log.files.lost

    def lead(self) -> None:
        """This replica leads from now on. A majority has elected it, and is in sync until its peers have answered; all
        are of a log without records.
        """
        assert not self.waiters.acks and not self.waiters.own_acks, "acknowledgements of an earlier leadership wait"
        self.refusal = ErrorCode.NONE
        voters = self.group.voters
        self.replicas.count = voters // 2 + 1 if self.log.next_offset else voters
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
        self.waiters.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def trimmed(self) -> None:
        """The log start has moved: tell who waits for it, and fetch sessions."""
        start = self.log.start_offset
        self.transactions.trim(start)
        if self.archive is not None:
            self.archive.trimmed()
        self.settle_trims()
        self.wake_readers()

    @property
    def settled_start(self) -> Offset:
        """Log starts up to this one outlive what acknowledged records outlive."""
        return self.log.start_offset if self.archive is None else self.archive.start.safe()

    def settle_trims(self) -> None:
        """Answer who waits for a log start that has come."""
        self.waiters.settle_trims(self.settled_start)

    @property
    def has_failed(self) -> bool:
        """Whether the boundary has ended the partition."""
        return self.refusal is ErrorCode.KAFKA_STORAGE_ERROR

    def failed(self, verb: str, error: Exception) -> None:
        """A verb has raised what no verb raises; see ``OpenLog.failed``."""
        self.log.failed(verb, error)

    def fail(self) -> None:
        """Refuse everything from now on; who waits is answered later (``Waiters.take_all``)."""
        self.refusal = ErrorCode.KAFKA_STORAGE_ERROR
        self.gate |= Gate.FAILED | Gate.CLOSED

    def wake_readers(self) -> None:
        """Tell everyone who waits for data, once."""
        self.waiters.wake_readers()

    def close(self, error: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> None:
        """Answer everything that waits; the log is closed or deleted by the caller."""
        self.refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.set_gate()
        self.waiters.fail(error)

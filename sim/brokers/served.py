"""Brokers of the simulated world with what stands on a Raft group: a partition for clients, and groups' offsets.

::

    clients ──► ServedBroker.produce, fetch, … ──► Partition ─ ProducerState ─┐
            ──► LocalGroups ─ InternalLog ──────► Partition ──────────────────┴─► ReplicatedGroup ─ Log

The partitions are opened by the production's `partition.lifecycle`, and a produce goes through the handler's own
`append_here`. What a client asks for is a method here; the answer is given to its ``reply``, once. A broker that goes
down answers nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.coordinator.asks import OFFSET_COMMIT, OFFSET_FETCH, Ask
from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.coordinator.local_groups import LocalGroups
from millstream.core.controller.topic_names import TRANSACTION_STATE
from millstream.core.group.outputs import GroupSettings
from millstream.kafka.handlers.data.produce import append_here
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, RaftGroupId
from millstream.partition.append.admission import Admission
from millstream.partition.append.internal import InternalLog, InternalLogs
from millstream.partition.delete_records import delete_records
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.partition import Partition
from millstream.partition.read.batches import FetchResult, read_here, read_older
from millstream.partition.read.epoch_end import epoch_end
from millstream.partition.read.list_offsets import list_offset
from millstream.partition.read.request import ReadRequest
from millstream.partition.replica.repairing import Looks
from millstream.partition.table import PartitionTable
from sim.brokers.coordinator import TRANSACTIONS_GROUP, Coordinating
from sim.brokers.world import GROUP, SEGMENT_BYTES, Broker
from sim.engine.local_storage import DATA_DIR
from sim.engine.requests import (
    Polling,
    ProduceCall,
    Produced,
    commit_error,
    commit_request,
    fetch_request,
    fetched_offsets,
    handlers_node,
)
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.group.topics import Topics
    from millstream.core.txn.messages import Request
    from millstream.partition.append.batch import ProducerTransaction
    from millstream.partition.replica.members import Members
    from millstream.raft.replicated import ReplicatedGroup
    from millstream.storage.log.importing import StagedFiles
    from millstream.wire.schema import Message
    from sim.brokers.world import Cluster
    from sim.engine.local_storage import LocalShard

OFFSETS_GROUP: Final = RaftGroupId(70_009)
TOPIC: Final = "t"
_EXPIRY_MS: Final = 600_000
_ASKED_TOPIC: Final = "read"

SETTINGS: Final = Settings(data_dir=DATA_DIR)


def _config(write_caching: bool) -> Any:
    """What a test topic asks for: small segments, kept for ever."""
    made = topic_config({"retention.ms": "-1"}, SETTINGS)
    made.__dict__.update(segment_bytes=SEGMENT_BYTES, write_caching=write_caching)
    return made


def own_topic_id(group: RaftGroupId) -> bytes:
    """Of a topic that each simulated broker opens by itself."""
    return bytes(12) + group.to_bytes(4, "big")


class Fetched(NamedTuple):
    """Answer to a fetch: as much as a response says, and whole batches."""

    error: int
    high_watermark: int
    log_start: int
    term: int
    data: bytes
    diverging: bool


class ServedBroker(Broker):
    """A broker with a partition of a topic, and the partition of ``__consumer_offsets``.

    Lifecycle: as `Broker`. The methods are called while it is up.
    """

    transactions: Coordinating | None = None
    group_settings = GroupSettings()
    group_topics: Topics | None = None
    """What coordinators of consumer groups know of topics."""
    kept = False
    """The disk has the replicas: what comes up without its files has lost them."""
    rot: object = None
    """What went bad of its files last (`rot`)."""

    def open_groups(self, shard: LocalShard, *, clean: bool) -> None:
        """Open both partitions as metadata would have them opened."""
        self.table = table = PartitionTable()
        self.admission = Admission(shard.context.reactor, shard.storage)
        self.node = handlers_node(shard, self.admission)
        self.lifecycle = lifecycle = Lifecycle(
            shard.context, SETTINGS, shard.storage, table, self.admission, clean=clean, groups=self.raft
        )
        repairs: Any = lifecycle.repairs
        begin_anew = repairs._replace

        def replaced(partition: Partition, members: Members, files: StagedFiles) -> None:
            self._begins_anew()
            begin_anew(partition, members, files)

        repairs._replace = replaced
        self.groups = LocalGroups(shard.context, self.group_settings, _EXPIRY_MS, self.group_topics)
        logs = InternalLogs(table)
        logs.on_open(self._on_open)
        logs.on_close(self._on_close)
        config = _config(self.cluster.write_caching)
        self.partition = self._open(lifecycle, table, TOPIC, GROUP, config)
        self.group: ReplicatedGroup = self.partition.group  # pyright: ignore[reportAttributeAccessIssue]
        if TRANSACTIONS_GROUP in self.cluster.histories:
            self.transactions = Coordinating(self, logs)
            self._open(lifecycle, table, TRANSACTION_STATE, TRANSACTIONS_GROUP, _config(write_caching=False))
        if OFFSETS_GROUP in self.cluster.histories:
            self.offsets = self._open(lifecycle, table, OFFSETS_TOPIC, OFFSETS_GROUP, _config(write_caching=False))

    def _open(
        self, lifecycle: Lifecycle, table: PartitionTable, name: str, group: RaftGroupId, config: Any
    ) -> Partition:
        topic_id = own_topic_id(group)
        fresh = not self.kept
        lifecycle.open(name, topic_id, 0, group, 0, config, fresh=fresh, voters=self.cluster.first.voters)
        opened = table.find(name, 0)
        if not isinstance(opened, Partition):
            raise Violation(f"B2: {self.replica} can't open {name}: {getattr(opened, 'reason', opened)}")
        if opened.log.files.lost and self.rot is not None:
            self._begins_anew()
        if fresh:
            opened.log.host.wal.when_durable(self._keep)
        made: Any = opened.group
        self.check(self.cluster.histories[group], made)
        self.watch_installs(made)
        return opened

    def _begins_anew(self) -> None:
        """The replica of the topic has found damage, and counts for nothing until it is filled again."""
        if self.rot is None:
            raise Violation(f"B2: {self.replica} empties its log, and nothing of it is bad")
        self.cluster.history.seen["replica begun anew"] += 1
        self.cluster.history.lose(self.replica)

    def look(self) -> None:
        """Look at the files, as a broker does after its start and once a week."""
        assert self.shard is not None
        Looks(self.shard.context.reactor, self.shard.storage, self.table).start()

    def watch_installs(self, group: ReplicatedGroup) -> None:
        """Files that replace the log of a replica that was away for long: no client was promised what they lack."""
        install: Any = group.events.on_install

        def replaced(files: StagedFiles) -> None:
            self.replaces_files(group, files)
            install(files)

        group.events.on_install = replaced

    def _take_installed(self) -> None:
        """The lifecycle has reopened the log that files have replaced."""
        if not self.group.closed:
            return
        found = self.table.find(TOPIC, 0)
        if isinstance(found, Partition) and found is not self.partition:
            self.partition = found
            self.group = found.group  # pyright: ignore[reportAttributeAccessIssue]
            self.checks = [one for one in self.checks if not one.group.closed]
            self.check(self.cluster.history, self.group)
            self.watch_installs(self.group)

    def step(self) -> None:
        """Do one thing."""
        super().step()
        self._take_installed()

    def _keep(self) -> None:
        self.kept = True

    @property
    def is_whole(self) -> bool:
        """Whether the topic's replica is there, and has everything that it ever promised."""
        return self.kept and not self.partition.log.files.lost

    def wipe(self) -> None:
        """Lose the files of the topic's replica while the broker is down. It may come back in an older term."""
        directory = self.partition.log.directory
        try:
            names = self.disk.list(directory)
        except FileNotFoundError:
            return  # all that there was is in the write-ahead log
        for name in names:
            self.disk.unlink(f"{directory}/{name}")
        self.disk.remove_directory(directory)
        self.disk.sync_directory(directory.rpartition("/")[0])
        self.cluster.history.forget(self.replica)

    def _on_open(self, log: InternalLog) -> None:
        if log.name == OFFSETS_TOPIC:
            self.groups.opened(log)

    def _on_close(self, log: InternalLog) -> None:
        if log.name == OFFSETS_TOPIC:
            self.groups.closed(log)

    # What clients ask for

    def produce(self, batch: bytes, acks: int, reply: Callable[[Produced], None]) -> None:
        """Append one batch."""
        self.append_to(self.partition, batch, acks, reply)

    def append_to(
        self,
        partition: Partition,
        batch: bytes,
        acks: int,
        reply: Callable[[Produced], None],
        transaction: ProducerTransaction | None = None,
    ) -> None:
        """Append one batch to a partition of this broker."""
        assert self.shard is not None
        call: Any = ProduceCall(partition, acks, reply, transaction)
        append_here(self.node, partition, memoryview(batch), call, 0)

    def fetch(
        self, offset: Offset, epoch: int, last_epoch: int, max_bytes: int, reply: Callable[[Fetched], None]
    ) -> None:
        """Read whole batches from ``offset`` on."""
        partition = self.partition

        def answer(result: FetchResult) -> None:
            data = b""
            if result.data is not None:
                data = bytes(result.data.copy(0, len(result.data)))
                result.data.release()
            reply(
                Fetched(
                    result.error_code,
                    result.high_watermark,
                    result.log_start_offset,
                    partition.leader_epoch,
                    data,
                    result.diverging is not None,
                )
            )

        request = ReadRequest(offset, max_bytes, leader_epoch=epoch, last_fetched_epoch=last_epoch)
        result = read_here(partition, request, Polling())
        if result is not None:
            answer(result)
            return
        self.cluster.history.seen["read from a segment"] += 1
        read_older(partition, request, answer)

    def list_offset(self, timestamp: int, reply: Callable[[tuple[int, int, int]], None]) -> None:
        """(error, offset, term of the leader) of a special timestamp."""
        partition = self.partition
        list_offset(partition, timestamp, -1, 0, lambda found: reply((found[0], found[2], partition.leader_epoch)))

    def epoch_end(self, current_epoch: int, epoch: int, reply: Callable[[tuple[int, int, int]], None]) -> None:
        """(error, epoch, end offset) of OffsetForLeaderEpoch."""
        reply(epoch_end(self.partition, current_epoch, epoch))

    def read_barrier(self, reply: Callable[[tuple[int, int]], None]) -> None:
        """(error, committed end) once it is proved that this broker leads."""
        group = self.group
        group.read_barrier(lambda error: reply((int(error.code) if error else 0, group.committed_offset)))

    def delete_records(self, offset: int, reply: Callable[[tuple[int, int, int]], None]) -> None:
        """(error, log start, term of the leader) of DeleteRecords."""
        partition = self.partition
        delete_records(partition, Offset(offset), lambda done: reply((*done, partition.leader_epoch)))

    def coordinate(self, given: Request) -> None:
        """Process a request about a transactional id."""
        assert self.transactions is not None
        self.transactions.request(given)

    def ask_group(
        self, api: int, version: int, client_id: str, request: Message, reply: Callable[[tuple[Any, int]], None]
    ) -> None:
        """(the response, or the code that refuses the request, and the coordinator's term) of a request for a group."""

        def done(answer: Message | ErrorCode) -> None:
            reply((answer, self.offsets.leader_epoch))

        self._ask_group(api, version, client_id, request, done)

    def _ask_group(self, api: int, version: int, client_id: str, request: Message, done: Callable[[Any], None]) -> None:
        self.groups.ask(Ask(api, 0, version, client_id, "/", False, b""), request, done)

    def commit_offset(self, offset: int, reply: Callable[[tuple[int, int]], None]) -> None:
        """(error, coordinator's term) of an OffsetCommit."""

        def done(answer: Any) -> None:
            reply((int(commit_error(answer)), self.offsets.leader_epoch))

        request = commit_request("g", _ASKED_TOPIC, offset)
        self._ask_group(OFFSET_COMMIT, 8, "client", request, done)

    def committed_offset(self, reply: Callable[[tuple[int, int, int]], None]) -> None:
        """(error, offset, coordinator's term) of an OffsetFetch."""

        def done(answer: Any) -> None:
            error, offsets = fetched_offsets(answer)
            reply((int(error), offsets.get(_ASKED_TOPIC, -1), self.offsets.leader_epoch))

        self._ask_group(OFFSET_FETCH, 8, "client", fetch_request("g"), done)


def serve(cluster: Cluster, node_id: int) -> ServedBroker:
    """Make a broker for `Cluster`."""
    return ServedBroker(cluster, node_id)

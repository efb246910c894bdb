"""The partitions that exist, and those whose home is this shard.

Every shard holds the whole table, by topic name and by topic id, so that a request is routed with one look-up: an
entry is the ``Partition`` itself when this shard is its home, and a ``Remote`` that names the home shard otherwise.
Entries appear and go as the metadata cache applies the controller's commands; ``partition.lifecycle`` is what keeps
the table in step.
"""

from collections.abc import Callable

from millstream.config.topic_properties import TopicConfig
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId, ShardId
from millstream.partition.partition import Partition
from millstream.partition.replica.members import Members
from millstream.shard.context import Shard


class Remote:
    """A partition whose home is another shard of this broker."""

    __slots__ = ("index", "name", "raft_group", "shard")

    def __init__(self, name: str, index: int, raft_group: RaftGroupId, shard: ShardId) -> None:
        self.name = name
        self.index = index
        self.raft_group = raft_group
        self.shard = shard


class Elsewhere(Remote):
    """A partition of which this broker holds no replica. Its shard is the one that asks, which refuses it with
    NOT_LEADER_OR_FOLLOWER: clients find the leader in the metadata.
    """

    __slots__ = ()


class Adopting(Elsewhere):
    """A partition whose replica here is closed for a moment, because its files are being replaced."""

    __slots__ = ("config",)

    def __init__(self, partition: Partition, shard: Shard) -> None:
        super().__init__(partition.name, partition.index, partition.raft_group, shard.id)
        self.config = partition.config
        """Of the topic, the newest."""


class Waiting(Elsewhere):
    """A partition whose replica here is not open yet, because the disk is full."""

    __slots__ = ("config", "directory")

    def __init__(
        self,
        name: str,
        index: PartitionIndex,
        raft_group: RaftGroupId,
        shard: ShardId,
        config: TopicConfig,
        directory: str,
    ) -> None:
        super().__init__(name, index, raft_group, shard)
        self.config = config
        """Of the topic, the newest."""
        self.directory = directory
        """Its files."""


class Restoring(Waiting):
    """A partition of this shard without files: the object store is asked for it before it is opened."""

    __slots__ = ("_waiting", "asked", "members")

    def __init__(
        self,
        name: str,
        index: PartitionIndex,
        raft_group: RaftGroupId,
        shard: ShardId,
        config: TopicConfig,
        directory: str,
        members: Members,
    ) -> None:
        super().__init__(name, index, raft_group, shard, config, directory)
        self.members = members
        self.asked = False
        """The store was asked and has not answered: its files may appear at any time."""
        self._waiting: Callable[[], None] | None = None

    def when_answered(self, done: Callable[[], None]) -> None:
        """Call ``done`` when no more files can appear."""
        if self.asked:
            self._waiting = done
        else:
            done()

    def answered(self) -> None:
        """The store has answered."""
        self.asked = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting()


class Faulty:
    """A partition of this shard that is not served: it failed (``partition.boundary``), or its durable data are
    damaged. Requests are answered KAFKA_STORAGE_ERROR.
    """

    __slots__ = ("damaged", "directory", "index", "name", "raft_group", "reason", "records")

    def __init__(
        self, name: str, index: int, raft_group: RaftGroupId, reason: str, directory: str, *, damaged: bool = True
    ) -> None:
        self.name = name
        self.index = index
        self.raft_group = raft_group
        self.reason = reason
        self.directory = directory
        self.damaged = damaged
        """Its files are not what they should be. False: a verb has raised."""
        self.records: int | None = None
        """End (exclusive) of what clients had seen of it; None if it was not open."""


Entry = Partition | Remote | Faulty
OnPartition = Callable[[Partition], None]


class PartitionTable:
    """All partitions of the broker as one shard sees them.

    Shard: one each; written by ``lifecycle`` only.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, list[Entry]] = {}
        self.by_id: dict[bytes, list[Entry]] = {}
        self.by_group: dict[int, Partition] = {}
        self.failed: dict[int, Faulty] = {}
        """Partitions of this shard that are not served, by group."""
        self.on_count: Callable[[], None] = _nobody
        """Called when ``by_group`` or ``failed`` has changed."""
        self._serving: set[Partition] = set()
        """Partitions of this shard whose replica here leads and knows all that is committed. A sole voter always does;
        the callbacks of `on_open` and `on_close` are called as partitions enter and leave.
        """
        self._opened: list[OnPartition] = []
        self._closed: list[OnPartition] = []
        self._led: list[OnPartition] = []

    def on_open(self, callback: OnPartition) -> None:
        """Call ``callback`` for every partition that this shard serves from then on, and those that it serves now
        included.
        """
        self._opened.append(callback)
        for partition in list(self._serving):
            callback(partition)

    def on_close(self, callback: OnPartition) -> None:
        """Call ``callback`` before a partition of this shard goes, or when another replica is to lead it."""
        self._closed.append(callback)

    def on_lead(self, callback: OnPartition) -> None:
        """Call ``callback`` for every partition that this shard leads in a new term."""
        self._led.append(callback)

    def leads(self, partition: Partition) -> None:
        """The replica of this shard was elected."""
        for callback in self._led:
            callback(partition)

    def serves(self, partition: Partition) -> None:
        """The replica of this shard leads and knows all that is committed."""
        self._serving.add(partition)
        for callback in self._opened:
            callback(partition)

    def resigned(self, partition: Partition) -> None:
        """The replica of this shard leads no more."""
        if partition in self._serving:
            self._serving.remove(partition)
            for callback in self._closed:
                callback(partition)

    def local(self, topic: str | bytes, index: int) -> Partition | None:
        """The partition, when this shard is its home."""
        entry = self.find(topic, index)
        return entry if isinstance(entry, Partition) else None

    def home(self, topic: str | bytes, index: int, here: int) -> int | None:
        """The home shard of the partition; None when there is no such partition."""
        entry = self.find(topic, index)
        if entry is None:
            return None
        return entry.shard if isinstance(entry, Remote) else here

    def find(self, topic: str | bytes, index: int) -> Entry | None:
        entries = (self.by_name if isinstance(topic, str) else self.by_id).get(topic)  # type: ignore[call-overload]
        if entries is None or not 0 <= index < len(entries):
            return None
        return entries[index]

    def missing(self, topic: str | bytes) -> ErrorCode:
        """The error code for a topic or partition that ``find`` does not know."""
        if isinstance(topic, bytes) and topic not in self.by_id:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def add(self, name: str, topic_id: bytes, entry: Entry) -> None:
        """Enter the next partition of a topic; indexes come in order."""
        entries = self.by_name.setdefault(name, [])
        assert entry.index == len(entries)
        entries.append(entry)
        self.by_id[topic_id] = entries
        self._enter(entry)

    def replace(self, topic_id: bytes, entry: Entry) -> None:
        """Put an entry in the place of another one of the same partition."""
        entries = self.by_id[topic_id]
        before = entries[entry.index]
        if isinstance(before, Partition):
            del self.by_group[before.raft_group]
            self.resigned(before)
        self.failed.pop(before.raft_group, None)
        entries[entry.index] = entry
        self._enter(entry)

    def _enter(self, entry: Entry) -> None:
        if isinstance(entry, Partition):
            self.by_group[entry.raft_group] = entry
            if entry.group.is_serving:
                self.serves(entry)
        elif isinstance(entry, Faulty):
            self.failed[entry.raft_group] = entry
        self.on_count()

    def gone(self, raft_group: RaftGroupId) -> ErrorCode:
        """Why a partition whose home is this shard is not in ``by_group``."""
        failed = raft_group in self.failed
        return ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def remove_topic(self, name: str, topic_id: bytes) -> tuple[list[Partition], list[Faulty]]:
        """Forget a topic; returns its partitions of this shard, after ``on_close`` callbacks ran."""
        entries = self.by_name.pop(name, [])
        self.by_id.pop(topic_id, None)
        local = [entry for entry in entries if isinstance(entry, Partition)]
        for partition in local:
            del self.by_group[partition.raft_group]
            self.resigned(partition)
        faulty = [entry for entry in entries if isinstance(entry, Faulty)]
        for entry in faulty:
            del self.failed[entry.raft_group]
        self.on_count()
        return local, faulty


def _nobody() -> None:
    """Default callback without effect."""

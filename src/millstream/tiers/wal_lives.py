"""The lives of a broker in its log of objects: each start has a number, and all earlier ones are sealed.

::

    wal/<node>/lives/<number>        who lived, with how many shards
    wal/<node>/<number>/<shard>/…    the log of one shard in that life (`object_wal`)

A start takes the next number with a conditional write, then seals the logs of all earlier lives, and acknowledges
nothing before that. So of two processes that believe to be the broker only the later one continues. `end_lives` seals
them for others, who take over what a dead broker has in the store: a life that starts in between learns from the
controller what was taken before it writes anything (`cluster.take_overs`).

A life that is sealed is only read, and its entries go when the archive has what is in them (`restoring`). The newest
life and the seals stay: they are what stops a process that was paused for however long.

**Crash.** Each step can be repeated: a number that was taken and not used is a life without entries. **The store is
away.** The start fails, or the take-over; nothing is served until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal
from millstream.model.cluster import BrokerEpoch, NodeId
from millstream.model.quantities import FilePosition, ShardId
from millstream.model.shared import Writer
from millstream.objects import ABSENT, ObjectKey
from millstream.objects.errors import Conflict
from millstream.tiers.object_wal import WAL_FOLDER, close_log, is_seal, wal_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.objects import ObjectStore

MAGIC: Final = b"MSWL"
VERSION: Final = 1
_LIVES: Final = "lives"


class Life(msgspec.Struct, frozen=True, array_like=True):
    """One life. Fields are only ever added at the end."""

    disk: str
    """The data directory (its incarnation); empty for a single broker."""

    shards: int
    """Logs of this run of the broker."""


def begin_life(store: ObjectStore, node: NodeId, disk: str, shard_count: int) -> Writer:
    """Take the next number for a start of a broker, and seal all earlier lives.

    Raises:
        Corruption: what is there cannot be read.
        Unavailable, OutcomeUnknown: the store; call again.
    """
    while True:
        known = lives(store, node)
        writer = Writer(node, BrokerEpoch(max(known, default=0) + 1))
        if _write(store, writer, Life(disk, shard_count)):
            break
    for number, life in known.items():
        seal_life(store, Writer(node, number), life)
    return writer


def end_lives(store: ObjectStore, node: NodeId) -> None:
    """Seal the logs of all lives of a broker that is not alive. May be repeated. Raises Corruption and what the store
    raises.
    """
    for number, life in lives(store, node).items():
        seal_life(store, Writer(node, number), life)


def seal_life(store: ObjectStore, writer: Writer, life: Life) -> None:
    """Seal the logs of all shards of a life. Raises Corruption and what the store raises."""
    for shard in range(life.shards):
        close_log(store, wal_folder(writer, ShardId(shard)))


def lives(store: ObjectStore, node: NodeId, known: dict[ObjectKey, Life] | None = None) -> dict[BrokerEpoch, Life]:
    """The lives of a broker, by their rising numbers. Those in ``known`` are not read again, and new ones are added to
    it. Raises Corruption and what the store raises.
    """
    known = {} if known is None else known
    found: dict[BrokerEpoch, Life] = {}
    for info in store.list(f"{WAL_FOLDER}{node}/{_LIVES}/"):
        if info.key not in known:
            data = store.get(info.key, FilePosition(0), FilePosition(info.size_bytes))
            try:
                known[info.key] = msgspec.msgpack.decode(unseal(MAGIC, VERSION, data), type=Life)
            except msgspec.MsgspecError as error:
                raise Corruption(f"{store.url}: {info.key} cannot be read: {error}") from error
        found[BrokerEpoch(int(info.key.rpartition("/")[2]))] = known[info.key]
    return found


def nodes(store: ObjectStore) -> list[NodeId]:
    """The brokers that have had a life."""
    found: list[NodeId] = []
    after = ""
    while (info := next(iter(store.list(WAL_FOLDER, after)), None)) is not None:
        name = info.key.removeprefix(WAL_FOLDER).partition("/")[0]
        if name.isdecimal():
            found.append(NodeId(int(name)))
        after = f"{WAL_FOLDER}{name}0"  # the first key after all those below the folder: "0" follows "/"
    return found


class FoundLog(NamedTuple):
    """The log of one shard in one life."""

    writer: Writer
    shard: ShardId
    numbers: list[int]
    """Of the entries that are there."""
    is_sealed: bool
    """Otherwise it may still be written."""


class Logs:
    """The logs of a store. What cannot change is asked for once: who lived, that a log is sealed, and that nothing is
    left of it.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lives: dict[ObjectKey, Life] = {}
        self._sealed: set[str] = set()
        self._over: set[str] = set()
        """Sealed logs without entries."""

    def find(self) -> Iterator[FoundLog]:
        """All logs but those that are over, of each broker the oldest life first. Raises Corruption and what the store
        raises.
        """
        for node in nodes(self._store):
            for number, life in lives(self._store, node, self._lives).items():
                for shard in map(ShardId, range(life.shards)):
                    writer = Writer(node, number)
                    folder = wal_folder(writer, shard)
                    if folder not in self._over:
                        yield self._found(writer, shard, folder)

    def _found(self, writer: Writer, shard: ShardId, folder: str) -> FoundLog:
        numbers = [int(info.key.rpartition("/")[2]) for info in self._store.list(folder)]
        if folder not in self._sealed and numbers and is_seal(self._store, folder, numbers[-1]):
            self._sealed.add(folder)
        elif folder not in self._sealed:
            return FoundLog(writer, shard, numbers, is_sealed=False)
        if len(numbers) == 1:
            self._over.add(folder)
        return FoundLog(writer, shard, numbers[:-1], is_sealed=True)


def _write(store: ObjectStore, writer: Writer, life: Life) -> bool:
    """Whether this call has written the life. One that another has written, or whose writing is unknown, leaves a
    number.
    """
    key = ObjectKey(f"{WAL_FOLDER}{writer.node_id}/{_LIVES}/{writer.broker_epoch:020}")
    try:
        store.put(key, [seal(MAGIC, VERSION, msgspec.msgpack.encode(life))], ABSENT)
    except Conflict:
        return False
    return True

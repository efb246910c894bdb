"""What the supervisor creates before the fork, shared by every process of the broker.

Mapped memory (arenas, rings, counters), the channels to each shard, and facts that are fixed: settings, bound
addresses, the result of recovery. After the fork only the mapped memory changes.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from millstream.app.guard import guard_channels
from millstream.app.recovery import Recovered
from millstream.app.tls import BrokerTls
from millstream.cluster.identity import Identity
from millstream.cluster.load import LoadedCluster
from millstream.config.settings import Settings
from millstream.iobuf import Arena
from millstream.model.quantities import ShardId
from millstream.model.shared import Writer
from millstream.secure.endpoint import Credentials
from millstream.shard.control import ControlPair
from millstream.shard.handover import Handover
from millstream.shard.mesh import Mesh
from millstream.storage.disk import Disk
from millstream.telemetry.metrics import StatsSlab

ROLES: Final = ("shard", "writer", "worker", "cleaner", "archive", "upload")


class SharedShard:
    """What one shard and its helper processes share with the supervisor, all of it made before the fork."""

    def __init__(self, shard: ShardId, arena_bytes: int, *, poison: bool) -> None:
        self.arena = Arena.create(shard, arena_bytes, poison=poison)
        self.stats = {role: StatsSlab(shard, role) for role in ROLES}
        """Counters of the shard's processes, by role."""
        self.control = ControlPair()
        self.handover = Handover()

    @property
    def connections(self) -> int:
        """The shard's open connections, and those that were handed over and that it has not taken yet."""
        return self.stats["shard"].gauge("net_connections").value + self.handover.pending


class Bound(msgspec.Struct, frozen=True):
    """Where the broker can be reached."""

    listeners: Mapping[str, tuple[str, int]]
    """Bound address of each listener, by name; in the order of the setting."""
    http_url: str


class Shared:
    """The shared parts of a broker. Created by the supervisor, read by all processes."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        bound: Bound,
        recovered: Recovered,
        cluster: LoadedCluster,
        stats: StatsSlab,
        identity: Identity | None = None,
        life: Writer | None = None,
        credentials: Mapping[str, Credentials] = MappingProxyType({}),
    ) -> None:
        arena_bytes = settings.memory_bytes // settings.shards
        poison = settings.internal_arena_poison
        self.settings = settings
        self.disk = disk
        self.bound = bound
        self.recovered = recovered
        self.cluster = cluster
        self.identity = identity
        """Who this broker is in its cluster; None for a single broker."""
        self.life = life
        """Number of this start in the write-ahead log in the store; None without one (``shared.wal``)."""
        self.tls = BrokerTls(credentials)
        self.shards = [SharedShard(ShardId(shard), arena_bytes, poison=poison) for shard in range(settings.shards)]
        self.mesh = Mesh(settings.shards)
        self.stats = stats  # the supervisor's
        self.guard = guard_channels(settings)

    @property
    def arenas(self) -> list[Arena]:
        """The arena of every shard."""
        return [shard.arena for shard in self.shards]

    @property
    def slabs(self) -> list[StatsSlab]:
        """The counters of every process."""
        return [self.stats, *(slab for shard in self.shards for slab in shard.stats.values())]

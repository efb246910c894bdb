"""What the supervisor creates before the fork, shared by every process of the broker.

Mapped memory (arenas, rings, counters), the channels to each shard, and facts that are fixed: settings, bound
addresses, the result of recovery. After the fork only the mapped memory changes.
"""

from collections.abc import Mapping
from typing import Final

from millstream.app.recovery import Recovered
from millstream.cluster.identity import Identity
from millstream.cluster.load import LoadedCluster
from millstream.config.settings import Settings
from millstream.core.shared.catalogue import Writer
from millstream.iobuf import Arena
from millstream.model.quantities import ShardId
from millstream.shard.control import ControlPair
from millstream.shard.handover import Handover
from millstream.shard.mesh import Mesh
from millstream.storage.disk import Disk
from millstream.telemetry.metrics import StatsSlab

ROLES: Final = ("shard", "writer", "worker", "cleaner", "archive")


class Shared:
    """The shared parts of a broker. Created by the supervisor, read by all processes."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        addresses: Mapping[str, tuple[str, int]],
        http_url: str,
        recovered: Recovered,
        cluster: LoadedCluster,
        stats: StatsSlab,
        identity: Identity | None = None,
        life: Writer | None = None,
    ) -> None:
        shards = settings.shards
        each = settings.memory_bytes // shards
        self.settings = settings
        self.disk = disk
        self.addresses = addresses
        """Bound address of each listener, by name; in the order of the setting."""
        self.http_url = http_url
        self.recovered = recovered
        self.cluster = cluster
        self.identity = identity
        """Who this broker is in its cluster; None for a single broker."""
        self.life = life
        """Number of this start in the write-ahead log in the store; None without one (``shared.wal``)."""
        poison = settings.internal_arena_poison
        self.arenas = [Arena.create(ShardId(shard), each, poison=poison) for shard in range(shards)]
        self.mesh = Mesh(shards)
        self.stats = stats  # the supervisor's
        self.shard_stats = [{role: StatsSlab(shard, role) for role in ROLES} for shard in range(shards)]
        self.control = [ControlPair() for _ in range(shards)]
        self.handover = [Handover() for _ in range(shards)]

    @property
    def slabs(self) -> list[StatsSlab]:
        """The counters of every process."""
        return [self.stats, *(slab for roles in self.shard_stats for slab in roles.values())]

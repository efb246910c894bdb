"""What the supervisor makes before it forks, and every process of the broker then shares.

Mapped memory (arenas, rings, counters), the channels to each shard, and what was decided once: settings, the bound
address, what recovery found. Nothing here changes after the fork but through the mapped memory.
"""

from collections.abc import Mapping
from typing import Final

from millstream.app.recovery import Recovered
from millstream.cluster.load import LoadedCluster
from millstream.config.settings import Settings
from millstream.iobuf import Arena
from millstream.shard.control import ControlPair
from millstream.shard.handover import Handover
from millstream.shard.mesh import Mesh
from millstream.storage.disk import Disk
from millstream.telemetry.metrics import StatsSlab

ROLES: Final = ("shard", "writer", "worker", "cleaner")


class Shared:
    """See the module. Made by the supervisor; read by all."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        addresses: Mapping[str, tuple[str, int]],
        http_url: str,
        recovered: Recovered,
        cluster: LoadedCluster,
        stats: StatsSlab,
    ) -> None:
        shards = settings.shards
        each = settings.memory_bytes // shards
        self.settings = settings
        self.disk = disk
        self.addresses = addresses
        """Where each listener is bound, by its name; the first is the first of the setting."""
        self.http_url = http_url
        self.recovered = recovered
        self.cluster = cluster
        self.arenas = [Arena.create(shard, each, poison=settings.internal_arena_poison) for shard in range(shards)]
        self.mesh = Mesh(shards)
        self.stats = stats  # the supervisor's
        self.shard_stats = [{role: StatsSlab(shard, role) for role in ROLES} for shard in range(shards)]
        self.control = [ControlPair() for _ in range(shards)]
        self.handover = [Handover() for _ in range(shards)]

    @property
    def slabs(self) -> list[StatsSlab]:
        """The counters of every process."""
        return [self.stats, *(slab for roles in self.shard_stats for slab in roles.values())]

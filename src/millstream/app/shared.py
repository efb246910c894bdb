"""What the supervisor creates before the fork, shared by every process of the broker.

Mapped memory (arenas, rings, counters), the channels to each shard, and facts that are fixed: settings, bound
addresses, the result of recovery. After the fork only the mapped memory changes.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

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
        credentials: Mapping[str, Credentials] = MappingProxyType({}),
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
        self.tls = BrokerTls(credentials)
        poison = settings.internal_arena_poison
        self.arenas = [Arena.create(ShardId(shard), each, poison=poison) for shard in range(shards)]
        self.mesh = Mesh(shards)
        self.stats = stats  # the supervisor's
        self.shard_stats = [{role: StatsSlab(shard, role) for role in ROLES} for shard in range(shards)]
        self.control = [ControlPair() for _ in range(shards)]
        self.handover = [Handover() for _ in range(shards)]
        self.guard = guard_channels(settings)

    @property
    def slabs(self) -> list[StatsSlab]:
        """The counters of every process."""
        return [self.stats, *(slab for roles in self.shard_stats for slab in roles.values())]

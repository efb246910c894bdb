"""A partition of an event topic: a partition with Mofka's four buffer pools (``partition.events.pools``).

What kind a topic is never changes, so that a partition is of this class from its opening on, or never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.partition.events.pools import EventPools, pool_limits
from millstream.partition.partition import Partition

if TYPE_CHECKING:
    from millstream.config.topic_properties import TopicConfig
    from millstream.core.producer_state import ProducerState
    from millstream.model.events import PartitionIndex
    from millstream.model.quantities import Offset, RaftGroupId
    from millstream.partition.meters import Meters
    from millstream.raft.group import Group
    from millstream.storage.log.log import Log


class EventsPartition(Partition):
    """See ``Partition``. ``pools`` have the shapes of ``config``."""

    __slots__ = ("_shaped_by", "pools")

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        index: PartitionIndex,
        raft_group: RaftGroupId,
        log: Log,
        group: Group,
        config: TopicConfig,
        producers: ProducerState,
        meters: Meters,
    ) -> None:
        self.pools = EventPools(pool_limits(log.host.arena), config.event_partition.pools, meters.pools)
        self._shaped_by = config
        super().__init__(name, topic_id, index, raft_group, log, group, config, producers, meters)

    def set_gate(self) -> None:
        """See ``Partition.set_gate``."""
        super().set_gate()
        if self.config is not self._shaped_by:
            self._shaped_by = self.config
            self.pools.reshape(self.config.event_partition.pools)

    def lease_until_committed(self, end: Offset) -> None:
        """The batch that was admitted last ends at ``end`` (exclusive): its buffers go back with its commit."""
        held = self.pools.lease()
        if held is None:
            return
        if end <= self.high_watermark:
            held.release()
        else:
            self.park((end, held, 0), own_sync=False)

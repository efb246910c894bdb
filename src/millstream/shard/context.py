"""The parts of a shard process, as other code on the shard sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.model.quantities import ShardId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf import Arena
    from millstream.shard.mailbox import Mailbox
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import StatsSlab


class Shard:
    """The parts of one shard process, wired at its start and alive until its end.

    ``arena`` is the shard's own memory (allocate here). ``arenas`` are those of all shards, by shard id (read only).
    """

    __slots__ = ("arena", "arenas", "count", "id", "mailbox", "reactor", "stats")

    def __init__(
        self,
        shard_id: ShardId,
        count: int,
        reactor: Reactor,
        arenas: Sequence[Arena],
        mailbox: Mailbox,
        stats: StatsSlab,
    ) -> None:
        self.id = shard_id
        self.count = count
        self.reactor = reactor
        self.arenas = arenas
        self.arena = arenas[shard_id]
        self.mailbox = mailbox
        self.stats = stats

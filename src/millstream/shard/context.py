"""A shard, as the parts that live on it see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf import Arena
    from millstream.shard.mailbox import Mailbox
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import StatsSlab


class Shard:
    """The pieces of one shard process, wired once at its start and alive until its end.

    `arena` is its own memory (allocate here), `arenas` are everybody's, by shard id (look only).
    """

    __slots__ = ("arena", "arenas", "count", "id", "mailbox", "reactor", "stats")

    def __init__(
        self, shard_id: int, count: int, reactor: Reactor, arenas: Sequence[Arena], mailbox: Mailbox, stats: StatsSlab
    ) -> None:
        self.id = shard_id
        self.count = count
        self.reactor = reactor
        self.arenas = arenas
        self.arena = arenas[shard_id]
        self.mailbox = mailbox
        self.stats = stats

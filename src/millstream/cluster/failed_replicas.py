"""Brokers tell each other which of their replicas have failed, so that Metadata lists them in OfflineReplicas.

::

    each shard ──FAILED_HERE──► shard 0 ──FAILED_REPLICAS──► shard 0 of every other broker
                                  └──FAILED_OF──► the shards of its broker ◄──FAILED_OF──┘

Shards look once a second; a broker tells the others on a change, and again every ten seconds, because a message may be
lost and a broker may have started since. One that has started again reports that nothing has failed, because the
others remember what had failed before. A broker that is not alive is offline with all its replicas anyway. A broker of
an older release refuses the call, which has no effect.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.cluster.messages import CONTROLLER_SHARD, FAILED_HERE, FAILED_OF
from millstream.model.cluster import NodeId
from millstream.model.replication import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.cluster.metadata import MetadataCache
    from millstream.errors import MillstreamError
    from millstream.model.replication import ReplicaId
    from millstream.peers.calls import CallDone, Calls
    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply

FAILED_REPLICAS: Final = 25
"""Method of ``peers.calls``: the Raft groups whose replicas have failed on the broker that calls."""

LOOK_US: Final = 1_000_000
AGAIN_LOOKS: Final = 10
_TIMEOUT_MS: Final = 5_000

_encode: Final = msgspec.msgpack.Encoder().encode
_groups: Final = msgspec.msgpack.Decoder(list[int]).decode
_of_broker: Final = msgspec.msgpack.Decoder(tuple[int, list[int]]).decode


class FailedReplicas:
    """One per shard. Lifecycle: made with the shard, `start` once."""

    def __init__(
        self, shard: Shard, failed: Callable[[], Iterable[int]], metadata: MetadataCache, calls: Calls | None
    ) -> None:
        """``failed`` gives the Raft groups of this shard's replicas that have failed; ``calls`` reach the others."""
        self._shard = shard
        self._failed = failed
        self._metadata = metadata
        self._calls = calls
        self._sent: list[int] | None = None
        """What this shard has sent to shard 0; None before the first look."""
        self._looks = 0
        self._of_shards: dict[int, list[int]] = {}
        """On shard 0: by shard of this broker."""
        self._known: dict[NodeId, list[int]] = {}
        """By broker, as the metadata of this shard show it."""
        shard.mailbox.serve(FAILED_OF, self._serve_of)
        if shard.id == CONTROLLER_SHARD:
            shard.mailbox.serve(FAILED_HERE, self._serve_here)
            if calls is not None:
                calls.serve(FAILED_REPLICAS, self._serve_broker)

    def start(self) -> None:
        """Look from now on."""
        self._shard.reactor.call_later(LOOK_US, self._look)

    def _look(self) -> None:
        self._looks += 1
        found = sorted(self._failed())
        if found != self._sent:
            self._sent = found
            if self._shard.id == CONTROLLER_SHARD:
                self._take(CONTROLLER_SHARD, found)
            else:
                self._shard.mailbox.tell(CONTROLLER_SHARD, FAILED_HERE, _encode(found))
        elif self._shard.id == CONTROLLER_SHARD and self._looks % AGAIN_LOOKS == 0:
            self._tell()
        self.start()

    def _serve_here(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = reply
        self._take(sender, _groups(payload))

    def _take(self, shard: int, found: list[int]) -> None:
        """A shard of this broker has other failed replicas than before."""
        self._of_shards[shard] = found
        self._tell()

    def _tell(self) -> None:
        mine, node = sorted(group for groups in self._of_shards.values() for group in groups), self._metadata.node_id
        self._learn(NodeId(node), mine)
        if self._calls is not None:
            for other in self._metadata.state.registry.alive():
                if other != node:
                    self._calls.call(other, FAILED_REPLICAS, _encode(mine), _TIMEOUT_MS, _ignore)

    def _serve_broker(self, sender: ReplicaId, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        _ = timeout_ms
        self._learn(NodeId(node_of(sender)), _groups(payload))
        done(b"")

    def _learn(self, node: NodeId, groups: list[int]) -> None:
        """Have every shard of this broker show what has failed on a broker."""
        self._show(node, groups)
        for shard in range(self._shard.count):
            if shard != self._shard.id:
                self._shard.mailbox.tell(shard, FAILED_OF, _encode((node, groups)))

    def _serve_of(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        node, groups = _of_broker(payload)
        self._show(NodeId(node), groups)

    def _show(self, node: NodeId, groups: list[int]) -> None:
        before = self._known.get(node, [])
        self._known[node] = groups
        show = partial(self._metadata.set_failed, node)
        for group in {*before, *groups}:
            show(group, failed=group in groups)


def _ignore(_: bytes | MillstreamError) -> None:
    """Ignore the answer: the report is sent again anyway."""

"""Whether a broker leads a partition, as it says itself: asked of the others before an unclean cut.

What a broker knows of a leader elsewhere may be old. The one that leads knows it from its own Raft group, and so does
one that led and leads no more, some seconds later. A replica that has failed leads nothing. A broker that does not
answer in time is named; the caller decides what that means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from millstream.errors import MillstreamError
from millstream.model.cluster import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from millstream.cluster.metadata import MetadataCache
    from millstream.model.replication import ReplicaId
    from millstream.peers.calls import CallDone, Calls

LEADS: Final = 27
"""Method of ``peers.calls``: whether the broker that is called leads a Raft group."""

_TIMEOUT_MS: Final = 5_000

_encode: Final = msgspec.msgpack.Encoder().encode
_group: Final = msgspec.msgpack.Decoder(int).decode
_flag: Final = msgspec.msgpack.Decoder(bool).decode


class Answers(NamedTuple):
    """What the others say."""

    leaders: tuple[NodeId, ...]
    silent: tuple[NodeId, ...]
    """Who has not answered."""


class LeadingBrokers:
    """Both ends of the question on one shard. Lifecycle: made with the shard. Shard: one each."""

    def __init__(self, metadata: MetadataCache, calls: Calls) -> None:
        self._metadata = metadata
        self._calls = calls
        calls.serve(LEADS, self._serve)

    def ask(self, raft_group: int, nodes: Collection[NodeId], done: Callable[[Answers], None]) -> None:
        """Ask these other brokers; ``done`` is called once, with what they say."""
        leaders: list[NodeId] = []
        silent: list[NodeId] = []
        waiting = set(nodes)
        if not waiting:
            done(Answers((), ()))

        def answered(node: NodeId, answer: bytes | MillstreamError) -> None:
            waiting.discard(node)
            if isinstance(answer, MillstreamError):
                silent.append(node)
            elif _flag(answer):
                leaders.append(node)
            if not waiting:
                done(Answers(tuple(sorted(leaders)), tuple(sorted(silent))))

        for node in tuple(nodes):
            self._calls.call(
                node, LEADS, _encode(raft_group), _TIMEOUT_MS, lambda answer, node=node: answered(node, answer)
            )

    def _serve(self, sender: ReplicaId, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        _ = sender, timeout_ms
        done(_encode(self._leads(_group(payload))))

    def _leads(self, raft_group: int) -> bool:
        place, node = self._metadata.group_place(raft_group), self._metadata.node_id
        topic = None if place is None else self._metadata.topic_by_id(place[0])
        if place is None or topic is None:
            return False
        part = topic.partitions[place[1]]
        return part.heard and part.leader == node and node not in part.failed

"""Which broker coordinates a group or a transactional id: the leader of its partition, once it does so.

::

    FindCoordinator ─► find ─► leader here?  ─► its home shard ── opened and loaded? ──► NONE
                            └► elsewhere?    ─► shard 0 of that broker ─► the same there ┘

A partition of ``__consumer_offsets`` or ``__transaction_state`` has a leader from its creation on, but the leader
coordinates only after it has opened the partition and read its log. A client that is sent there earlier gets
NOT_COORDINATOR, and a consumer loses the offsets of a ``commitAsync``. So a broker is named only after it has confirmed
that it coordinates. What is confirmed holds for the leader epoch, and is remembered.

The answer waits up to `WAIT_US` for a partition that is about to open. After that the partition that still loads is
named: its log is long, and clients repeat what is refused with COORDINATOR_LOAD_IN_PROGRESS. In every other case the
answer is COORDINATOR_NOT_AVAILABLE, and clients ask again: without a leader, without an answer of the leader, and if
the broker that is taken for the leader is none. A broker of an earlier release, which does not know the question, is
named without an answer.

**Crash.** Nothing is stored. **Overload.** A question costs one call between shards and one between brokers, once for
each partition and leader epoch; those that wait are bounded by the requests of the connections.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.cluster.metadata import MetadataListener
from millstream.cluster.placement import ELSEWHERE
from millstream.cluster.topic_table import TopicMeta
from millstream.coordinator.state_partition import State
from millstream.errors import MillstreamError, Rejected
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.coordinator.state_partition import StatePartition
    from millstream.coordinator.state_topic import Loads
    from millstream.model.replication import ReplicaId
    from millstream.peers.calls import CallDone, Calls
    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply

ASK_SHARD: Final = 68
"""Method of the mailbox."""
ASK_BROKER: Final = 18
"""Method of ``peers.calls``."""

WAIT_US: Final = 1_000_000
"""A new partition opens within this time unless the machine is overloaded; clients wait far longer for an answer."""
_CALL_US: Final = WAIT_US + 500_000

Done = Callable[[ErrorCode], None]
Place = tuple[str, PartitionIndex]
"""A state topic and one of its partitions."""

_encode = msgspec.msgpack.Encoder().encode
_decode_place = msgspec.msgpack.Decoder(Place).decode
_decode_code = msgspec.msgpack.Decoder(int).decode


class _Waiting:
    """A question about a partition of this broker."""

    __slots__ = ("done", "place")

    def __init__(self, place: Place, done: Done) -> None:
        self.place = place
        self.done = done


class Coordinators(MetadataListener):
    """The coordinators of all kinds, as one shard finds them.

    Lifecycle: one per shard; ``add`` for each kind before partitions open, ``across`` if there are other brokers.
    Invariant: what is in ``_waiting`` has a timer that ends it.
    """

    def __init__(self, shard: "Shard", metadata: "MetadataCache") -> None:
        self._shard = shard
        self._metadata = metadata
        self._kinds: dict[str, Mapping[int, StatePartition]] = {}
        self._confirmed: dict[Place, tuple[int, int]] = {}
        """Leader and leader epoch for which each partition was confirmed last."""
        self._waiting: list[_Waiting] = []
        self._calls: Calls | None = None
        shard.mailbox.serve(ASK_SHARD, self._serve_shard)
        metadata.subscribe(self)

    def add(self, topic: str, partitions: "Mapping[int, StatePartition]", loads: "Loads") -> None:
        """One kind of coordinator: its topic, and those of its partitions that are open on this shard."""
        self._kinds[topic] = partitions
        loads.on_ended = self._look_again

    def across(self, calls: "Calls") -> None:
        """There are other brokers: ask them, and answer them."""
        self._calls = calls
        calls.serve(ASK_BROKER, self._serve_broker)

    def find(self, topic: str, partition: PartitionIndex, done: Done) -> None:
        """Call ``done(NONE)`` when the leader of a partition coordinates, or with COORDINATOR_NOT_AVAILABLE."""
        known = self._metadata.partition(topic, partition)
        leader = None if known is None else self._metadata.leader_of(known)
        if known is None or leader is None:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        place, fact = (topic, partition), (leader, known.leader_epoch)
        if self._confirmed.get(place) == fact:
            done(ErrorCode.NONE)
            return

        def answered(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._confirmed[place] = fact
            done(error)

        if leader == self._metadata.node_id:
            self._ask_here(place, answered)
        elif self._calls is not None:
            self._calls.call(
                NodeId(leader), ASK_BROKER, _encode(place), _CALL_US // 1000, lambda got: answered(_of_broker(got))
            )
        else:
            answered(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # On the broker that leads

    def _ask_here(self, place: Place, done: Done) -> None:
        """Answer for a partition of this broker, maybe after some time."""
        waiting = _Waiting(place, done)
        if self._answer(waiting):
            return
        self._waiting.append(waiting)

        def too_late() -> None:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                loads = self._state(place) is State.LOADING
                done(ErrorCode.NONE if loads else ErrorCode.COORDINATOR_NOT_AVAILABLE)

        self._shard.reactor.call_later(WAIT_US, too_late)

    def _answer(self, waiting: _Waiting) -> bool:
        """Answer a question, or send it to the home shard. False: it waits for the partition."""
        topic, partition = waiting.place
        known = self._metadata.partition(topic, partition)
        if known is None:
            return False  # its creation is on its way to this broker
        if known.home_shard not in (ELSEWHERE, self._shard.id):
            self._ask_shard(known.home_shard, waiting)
            return True
        state = self._state(waiting.place)
        if state is State.ACTIVE:
            waiting.done(ErrorCode.NONE)
            return True
        opens = state is None and known.leader == self._metadata.node_id and known.home_shard != ELSEWHERE
        if opens or state is State.LOADING:
            return False
        waiting.done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return True

    def _ask_shard(self, shard: int, waiting: _Waiting) -> None:
        def answered(answer: bytes | MillstreamError) -> None:
            failed = isinstance(answer, MillstreamError)
            waiting.done(ErrorCode.COORDINATOR_NOT_AVAILABLE if failed else ErrorCode(_decode_code(answer)))

        self._shard.mailbox.call(shard, ASK_SHARD, _encode(waiting.place), answered, _CALL_US)

    def _state(self, place: Place) -> State | None:
        """State of a partition that is open on this shard."""
        found = self._kinds[place[0]].get(place[1])
        return None if found is None else found.state

    def _look_again(self) -> None:
        """A partition has loaded, or has closed, or a topic is there."""
        waiting, self._waiting = self._waiting, []
        self._waiting += [each for each in waiting if not self._answer(each)]

    def topic_created(self, topic: TopicMeta) -> None:
        """Questions may wait for the topic."""
        if topic.name in self._kinds:
            self._look_again()

    def _serve_shard(self, sender: int, payload: bytes, reply: "Reply") -> None:
        _ = sender
        self._ask_here(_decode_place(payload), lambda code: reply.send(_encode(int(code))))

    def _serve_broker(self, sender: "ReplicaId", payload: bytes, timeout_ms: int, done: "CallDone") -> None:
        _ = sender, timeout_ms
        place = _decode_place(payload)
        if place[0] not in self._kinds:
            raise Rejected(f"this release coordinates nothing that is kept in {place[0]}")
        self._ask_here(place, lambda code: done(_encode(int(code))))


def _of_broker(answer: bytes | MillstreamError) -> ErrorCode:
    """What the answer of another broker means."""
    if isinstance(answer, Rejected):
        return ErrorCode.NONE  # an earlier release
    if isinstance(answer, MillstreamError):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode(_decode_code(answer))

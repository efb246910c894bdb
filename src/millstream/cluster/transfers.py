"""Moves the leadership of partitions between brokers: on request, and back to the preferred replicas.

::

    any shard ──MOVE──► shard 0 ──leader is here──► home shard ──MOVE_HERE──► group.transfer
                            └──── elsewhere ──Call──► the leader's shard 0 ──► …
    controller, every leader.imbalance.check.interval.seconds: plan (`core.controller.leaders`) ──► shard 0, one by one

A transfer is answered when the leader has started it, or refuses it. The metadata show when the new leader leads.

**Bad input.** A group that is unknown, or that this broker does not lead, is refused retriably; so is one that hands
over already. A target that is no replica, or has not caught up, is ``Rejected``. **Crash.** A transfer is over with the
leader that had started it; nothing is lost either way. **Overload.** At most ``TRANSFERS_MAX`` of a plan are in flight;
a group that refused is left out for ``REST_US``.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from millstream.cluster.messages import CONTROLLER_SHARD, MOVE, MOVE_HERE
from millstream.cluster.metadata import MetadataCache
from millstream.core.controller.leaders import LeaderTransfer, LeaderView, plan_transfers
from millstream.errors import MillstreamError, Retriable
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.replication import ReplicaId, replica_id
from millstream.peers.calls import CallDone
from millstream.peers.network import Network
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply

MOVE_LEADER: Final = 2
"""Method of ``peers.calls``: the receiver is to hand the leadership of a partition over."""

TIMEOUT_US: Final = 5_000_000
REST_US: Final = 300_000_000
"""Redpanda's pause for a group that refused."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int]).decode
"""(Raft group, node that is to lead)."""

Done = Callable[[MillstreamError | None], None]


class MovableGroup(Protocol):
    """The part of a Raft group that is used here."""

    def transfer(self, to: ReplicaId) -> None:
        """Start to hand over; a ``MillstreamError`` that it raises is the answer."""
        ...


class Transfers:
    """Both ends of a transfer request on one shard.

    Lifecycle: made with the shard; ``start_balancing`` on the controller's. Shard: one each.
    """

    def __init__(
        self,
        shard: Shard,
        cache: MetadataCache,
        network: Network,
        group: Callable[[int], MovableGroup | None],
    ) -> None:
        """``group`` gives the replica of this shard with a number."""
        self._shard = shard
        self._cache = cache
        self._network = network
        self._group = group
        self._resting: dict[int, int] = {}
        """Groups that refused a transfer of a plan, and the time until which they are left out."""
        shard.mailbox.serve(MOVE_HERE, self._serve_move_here)
        if shard.id == CONTROLLER_SHARD:
            shard.mailbox.serve(MOVE, self._serve_move)
            network.calls.serve(MOVE_LEADER, self._serve_call)

    def move(self, raft_group: int, target: int, done: Done) -> None:
        """Let the leader of a group hand over to node ``target``; ``done`` gets None when it has started."""
        if self._shard.id == CONTROLLER_SHARD:
            self._move(raft_group, target, done)
            return

        def answered(answer: bytes | MillstreamError) -> None:
            done(answer if isinstance(answer, MillstreamError) else None)

        self._shard.mailbox.call(CONTROLLER_SHARD, MOVE, _encode((raft_group, target)), answered, TIMEOUT_US)

    def _serve_move(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender

        def done(error: MillstreamError | None) -> None:
            if error is None:
                reply.send(b"")
            else:
                reply.fail(error)

        self._move(*_decode(payload), done)

    # On the controller's shard

    def _move(self, raft_group: int, target: int, done: Done) -> None:
        place = self._cache.group_place(raft_group)
        topic = self._cache.topic_by_id(place[0]) if place is not None else None
        if place is None or topic is None:
            done(Retriable(f"there is no Raft group {raft_group}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        leader = topic.partitions[place[1]].leader
        if leader == self._cache.node_id:
            self._move_here(raft_group, target, done)
            return

        def answered(answer: bytes | MillstreamError) -> None:
            done(answer if isinstance(answer, MillstreamError) else None)

        payload = _encode((raft_group, target))
        self._network.calls.call(NodeId(leader), MOVE_LEADER, payload, TIMEOUT_US // 1000, answered)

    def _serve_call(self, sender: ReplicaId, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        _ = sender, timeout_ms

        def moved(error: MillstreamError | None) -> None:
            done(b"" if error is None else error)

        self._move_here(*_decode(payload), moved)

    def _move_here(self, raft_group: int, target: int, done: Done) -> None:
        """This broker leads, as far as the metadata know: let the group's home shard start."""
        home = self._cache.home_of_group(raft_group)
        if home is None:
            done(_not_here(raft_group))
        elif home == self._shard.id:
            done(self._begin(raft_group, target))
        else:

            def answered(answer: bytes | MillstreamError) -> None:
                done(answer if isinstance(answer, MillstreamError) else None)

            self._shard.mailbox.call(home, MOVE_HERE, _encode((raft_group, target)), answered, TIMEOUT_US)

    # On the home shard

    def _serve_move_here(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender
        error = self._begin(*_decode(payload))
        if error is None:
            reply.send(b"")
        else:
            reply.fail(error)

    def _begin(self, raft_group: int, target: int) -> MillstreamError | None:
        group = self._group(raft_group)
        if group is None:
            return _not_here(raft_group)
        try:
            broker = self._cache.state.registry.brokers.get(NodeId(target))
            group.transfer(replica_id(target) if broker is None else broker.replica)
        except MillstreamError as error:
            return error
        return None

    # Balancing

    def start_balancing(self, is_controller: Callable[[], bool]) -> None:
        """Bring leaderships back to the preferred replicas from now on, while this broker is the controller."""

        def look() -> None:
            if is_controller() and self._cache.settings.auto_leader_rebalance_enable:
                self._balance()
            again()

        def again() -> None:
            interval_s = self._cache.settings.leader_imbalance_check_interval_seconds
            self._shard.reactor.call_later(interval_s * 1_000_000, look)

        again()

    def _balance(self) -> None:
        now = self._shard.reactor.now_us()
        self._resting = {group: until for group, until in self._resting.items() if until > now}
        for transfer in plan_transfers(self._cache.state, self._view, resting=self._resting):
            self._move(transfer.raft_group, transfer.target, self._rest_if_refused(transfer, now))

    def _rest_if_refused(self, transfer: LeaderTransfer, now_us: int) -> Done:
        def done(error: MillstreamError | None) -> None:
            if error is not None:
                self._resting[transfer.raft_group] = now_us + REST_US

        return done

    def _view(self, raft_group: int) -> LeaderView | None:
        place = self._cache.group_place(raft_group)
        topic = self._cache.topic_by_id(place[0]) if place is not None else None
        if place is None or topic is None:
            return None
        part = topic.partitions[place[1]]
        leader = self._cache.leader_of(part)
        return None if leader is None else LeaderView(NodeId(leader), part.in_sync)


def _not_here(raft_group: int) -> MillstreamError:
    return Retriable(f"this broker does not lead Raft group {raft_group}", ErrorCode.NOT_LEADER_OR_FOLLOWER)

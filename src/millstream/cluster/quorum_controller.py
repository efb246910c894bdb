"""The controller of a cluster of several brokers. The leader of Raft group 0 decides; every broker applies the commits.

::

    any broker's shard ──SUBMIT──► shard 0 ──leads?──► decide ► replicate ► commit ─┐
                                      └─no── Call ───► the leader's shard 0         │
    every broker: committed commands (`committed`) ──► own homes ──► its shards ──► applied ──► answer (leader)

Each broker has one of these on shard 0, with a replica of group 0. A forwarded request is answered when this broker,
too, has applied what it changed. The leader decides against its own state, which runs
ahead of the commit as in ``controller``. Every broker applies what is committed, and only that, in log order: to its
``committed`` state first, which places the new partitions that this broker holds on its own shards, then on its shards.

**Becoming the controller.** A new leader waits until its term start is committed and everything before it is applied
here; then its state is the committed one. The first one of all creates the cluster with the id that its founders agreed
on. **Resigning** answers every request that waits with an unknown outcome, before anything else.

**Brokers.** Each broker registers with the controller after its start and then says that it is alive
(``own_registration``). The leader fences silent brokers and those that say that they stop
(``core.controller.liveness``), and does what follows for the members of group 0 and for replicas (``plans``).

**Crash.** The state is that of group 0's log. **Overload.** As in ``controller``. A request that was forwarded and gets
no answer in time has an unknown outcome. Without a leader a request is refused with NOT_CONTROLLER, which clients
repeat.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from millstream.cluster.announce import announce, is_take_over, is_taken
from millstream.cluster.client import INTERNAL_TIMEOUT_MS
from millstream.cluster.committed import CommittedCommands
from millstream.cluster.controller import new_topic_id
from millstream.cluster.deletions import Deletions
from millstream.cluster.follower import Follower
from millstream.cluster.homes import homes_after
from millstream.cluster.joining import serve_who_leads
from millstream.cluster.messages import QUORUM, Commit, Quorum, encode
from millstream.cluster.metadata import MetadataCache, live_settings
from millstream.cluster.mutation_quotas import SpenderOf, spender_of
from millstream.cluster.own_registration import CONTROLLER_REQUEST, OwnRegistration
from millstream.cluster.own_shards import PENDING_MAX, Done, OwnShards, append_commands
from millstream.cluster.placement import Placement
from millstream.cluster.plans import Plans, ignore
from millstream.cluster.snapshots import Snapshots
from millstream.core.controller.commands import AnyCommand, ReplicasChanged
from millstream.core.controller.decide import Rules, decide
from millstream.core.controller.liveness import Liveness
from millstream.core.controller.requests import (
    AnyRequest,
    CreateCluster,
    FenceBroker,
    RegisterBroker,
    Results,
    decode_request,
    decode_results,
    encode_request,
    encode_results,
)
from millstream.core.controller.state import ControllerState
from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Retriable, ShuttingDown, Unavailable
from millstream.iobuf import ArenaFull
from millstream.model.cluster import NodeId, Revision
from millstream.model.error_code import ErrorCode
from millstream.model.replication import NO_REPLICA, ReplicaId, Term, node_of
from millstream.peers.calls import CallDone
from millstream.peers.hello import Seed
from millstream.peers.items import Status
from millstream.peers.network import Network
from millstream.raft.replicated import ReplicatedGroup
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.shard.process import EXIT_UNAVAILABLE
from millstream.telemetry.log import log as operator_log
from millstream.telemetry.metrics import StatsSlab

FORWARD_US: Final = 10_000_000
FORWARD_RETRY_US: Final = 100_000
"""A request that finds no leader waits for one: a fail-over takes two seconds, a split vote some more."""

_END: Final = struct.Struct("<Q")
"""First field of the answer to a forwarded request: the revision that the leader's shards had applied."""

_RESIGNED: Final = "another broker is the controller now; the request may have been carried out"


class _Waiting(msgspec.Struct, frozen=True):
    """A request that was decided, here or by the leader, and waits until every shard of this broker has applied
    ``end``.
    """

    end: int
    results: Results
    done: Done


class _Leadership:
    """State of the leader only.

    Lifecycle: from the commit of the term start to the resignation.
    Invariants: ``state`` is the committed state and what was proposed since; ``waiting`` is sorted by ``end``.
    """

    def __init__(self, state: ControllerState, liveness: Liveness, spender: SpenderOf) -> None:
        self.state = state
        self.liveness = liveness
        self.spender = spender
        self.waiting: deque[_Waiting] = deque()
        liveness.left_revision = Revision(state.revision)


class QuorumController:
    """One broker's part of the controller.

    Lifecycle: made with shard 0, ``start`` once all shards run, ``stop`` before the storage stops. Shard: 0.
    Invariants: ``_committed`` has applied exactly the commands below ``commands.next_offset``. ``_leadership`` is set
    only while the group serves.
    """

    def __init__(
        self,
        shard: Shard,
        group: ReplicatedGroup,
        network: Network,
        cache: MetadataCache,
        follower: Follower,
        placement: Placement,
        snapshots: Snapshots,
        registration: RegisterBroker,
        founders: int,
        contacts: dict[NodeId, Seed] | None = None,
    ) -> None:
        """``registration`` is what this broker says of itself, with the id of the cluster that it belongs to.
        ``founders`` is the number of brokers that formed it, 0 if this one came later; then ``contacts`` has some.
        """
        self._founders = founders
        self._shard = shard
        self._group = group
        self._network = network
        self._cache = cache
        self._placement = placement
        self._snapshots = snapshots
        self._registration = OwnRegistration(self, shard.reactor, network, cache, registration, contacts)
        self._committed = cache.state.copy()
        self.commands = CommittedCommands(shard.reactor, group, cache.revision, self._deliver)
        mark = snapshots.marks.note_committed
        self._shards = OwnShards(shard, follower, cache.revision, self.submit, self._on_applied, mark)
        settled = snapshots.marks.settled = lambda: self._shards.settled_revision
        self._deletions = Deletions(shard.reactor, mark, settled, self._shards.follow)
        self._forwarded: list[_Waiting] = []
        """Requests that another broker has carried out, and this one has not applied yet."""
        self._leadership: _Leadership | None = None
        self._serving_from: int | None = None
        """End of what must be applied here before this leader decides; None unless it leads and does not decide yet."""
        self._figures = ClusterFigures(shard.stats)
        self.plans = Plans(group, self._registration.node, cache, shard.reactor.now_us, self.submit, shard.stats)
        self.on_taken: Callable[[], None] = lambda: None
        """Called when others restore partitions of this broker, which counts as dead."""
        self.has_left: Callable[[], bool] = lambda: False
        """Asked when other brokers refuse this one permanently: whether it stops in order, because it was to leave."""
        self._stopping = False
        group.events.on_commit = self._on_commit
        group.events.on_serving = self._on_serving
        group.events.on_resign = self._on_resign
        shard.mailbox.serve(QUORUM, self._serve_quorum)
        network.calls.serve(CONTROLLER_REQUEST, self._serve_call)
        serve_who_leads(network, cache, lambda: self.leader)
        self.commands.advance()

    # Life

    def start(self, done: Callable[[MillstreamError | None], None]) -> None:
        """Register this broker; ``done`` is called when the cluster has it, or with the reason why it refuses it."""
        self._registration.start(done)
        operator_log.info("waits for a majority of the brokers that hold the controller's log")
        self._tick()

    def leave(self, done: Callable[[], None]) -> None:
        """This broker stops: let the controller take it for not alive at once, instead of after some silence. ``done``
        is called in any case, soon.
        """
        self._registration.leave(done)

    def stop(self, done: Callable[[], None]) -> None:
        """Refuse new requests, give those in flight an unknown outcome, and call ``done`` when a snapshot is saved."""
        self._stopping = True
        self._on_resign()
        self._snapshots.stop(done)

    @property
    def leader(self) -> NodeId | None:
        """The active controller, as far as this broker knows."""
        if self._group.is_serving:
            return self._registration.node
        leader = self._group.leader
        return None if leader == NO_REPLICA else NodeId(node_of(leader))

    @property
    def settled_revision(self) -> Revision:
        """What every shard of this broker has applied."""
        return Revision(self._shards.settled_revision)

    @property
    def is_deciding(self) -> bool:
        """Whether this broker is the active controller."""
        return self._leadership is not None

    @property
    def voters(self) -> tuple[int, ...]:
        """The brokers that vote on the controller's log."""
        return tuple(sorted(node_of(voter) for voter in self._group.configuration.voters))

    def on_status(self, sender: ReplicaId, status: Status) -> None:
        """A broker says that it is alive."""
        leadership = self._leadership
        if leadership is not None:
            node, now = NodeId(node_of(sender)), self._shard.reactor.now_us()
            leadership.liveness.beat(leadership.state, node, status.epoch, status.revision, now)
            broker = leadership.state.registry.brokers.get(node)
            if broker is not None and broker.fenced:
                self._fence(leadership)  # it waits to serve

    def retire(self, message: str) -> None:
        """Another broker knows that this one's directory must never take part again: this broker ends."""
        registration = self._registration
        if not registration.refuse(message) and not self._stopping and not (registration.was_ready and self.has_left()):
            self._shard.reactor.stop(EXIT_UNAVAILABLE, message)

    # A request

    def submit(self, request: AnyRequest, done: Done) -> None:
        """Decide ``request``, or forward it to the leader; ``done`` gets the results."""
        self._submit(request, done, 0)

    def _submit(self, request: AnyRequest, done: Done, waited_us: int) -> None:
        if self._stopping:
            done(ShuttingDown("the broker is stopping", ErrorCode.NOT_CONTROLLER))
        elif self._leadership is not None:
            self._decide(self._leadership, request, done)
        else:
            self._forward(request, done, waited_us)

    def _forward(self, request: AnyRequest, done: Done, waited_us: int) -> None:
        """Forward a request to the leader. One that was not carried out is tried again while an election may last."""

        def again(error: Retriable) -> None:
            if waited_us >= FORWARD_US:
                done(error)
            else:
                self._shard.reactor.call_later(
                    FORWARD_RETRY_US, lambda: self._submit(request, done, waited_us + FORWARD_RETRY_US)
                )

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, Retriable):
                again(answer)
            elif isinstance(answer, MillstreamError):
                done(answer)
            else:
                (end,) = _END.unpack_from(answer)
                self._answer_when_applied(end, decode_results(memoryview(answer)[_END.size :]), done)

        leader = self.leader
        if leader is None or leader == self._registration.node:
            again(Retriable("no broker leads the controller's log now", ErrorCode.NOT_CONTROLLER))
            return
        self._network.calls.call(leader, CONTROLLER_REQUEST, encode_request(request), INTERNAL_TIMEOUT_MS, answered)

    def _answer_when_applied(self, end: int, results: Results, done: Done) -> None:
        """Answer once this broker has applied what the leader had, so that the client's next request here finds it."""
        if self._shards.settled_revision >= end or len(self._forwarded) >= PENDING_MAX:
            done(results)
        else:
            self._forwarded.append(_Waiting(end, results, done))

    def _serve_call(self, sender: ReplicaId, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        """Another broker forwards a request; it is not forwarded again."""
        _ = timeout_ms
        leadership = self._leadership
        if leadership is None or self._stopping:
            raise Retriable("this broker does not lead the controller's log", ErrorCode.NOT_CONTROLLER)

        def answered(results: Results | MillstreamError) -> None:
            if isinstance(results, MillstreamError):
                done(results)
            else:
                done(_END.pack(self._shards.settled_revision) + encode_results(results))

        try:
            request = decode_request(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Rejected(f"this release does not know the request: {error}", ErrorCode.UNSUPPORTED_VERSION) from None
        if isinstance(request, FenceBroker) and request.node == node_of(sender):
            leadership.liveness.leave(request.node)
        self._decide(leadership, request, answered)

    def _decide(self, leadership: _Leadership, request: AnyRequest, done: Done) -> None:
        if len(leadership.waiting) >= PENDING_MAX:
            done(Retriable(f"the controller has {PENDING_MAX} requests in flight", ErrorCode.THROTTLING_QUOTA_EXCEEDED))
            return
        decision = decide(leadership.state, request, self._rules(leadership))
        if decision.commands:
            try:
                self._replicate(leadership, decision.commands)
            except ArenaFull:
                done(Unavailable("no memory for the controller's log; nothing was changed"))
                return
            except MillstreamError as error:
                done(error)
                return
        if self._shards.settled_revision >= leadership.state.revision:
            done(decision.results)
        else:
            leadership.waiting.append(_Waiting(leadership.state.revision, decision.results, done))

    def _replicate(self, leadership: _Leadership, commands: tuple[AnyCommand, ...]) -> None:
        state = leadership.state
        append_commands(self._group, commands, state.revision, self._shard.reactor.wall_ms())
        for command in commands:
            state.apply(command)
        if any(isinstance(command, ReplicasChanged) for command in commands):
            leadership.liveness.left_revision = Revision(state.revision)

    def _rules(self, leadership: _Leadership) -> Rules:
        start, liveness = self._cache.start_settings, leadership.liveness
        behind = partial(liveness.is_behind, self.settled_revision)
        live = live_settings(leadership.state, start)
        node, founders = self._registration.node, max(self._founders, 1)
        return Rules(node, live, start, new_topic_id, founders, behind, leadership.spender)

    # Committed

    def _on_commit(self, high_watermark: int) -> None:
        _ = high_watermark
        self.commands.advance()

    def _deliver(self, base: int, commands: tuple[AnyCommand, ...]) -> None:
        """Commands are committed: this broker and its shards apply them."""
        if self._registration.was_ready:
            announce(commands, self._cache)
            self._figures.count(commands, self._cache)
            if is_taken(commands, self._cache):
                self.on_taken()
        homes: list[int] = []
        for command in commands:
            homes += homes_after(command, self._committed, self._placement, self._registration.node)
            self._committed.apply(command)
        self._deletions.pass_on(Commit(base, commands, tuple(homes)))
        self._snapshots.state_changed()
        self._begin()

    def _on_applied(self) -> None:
        """A shard of this broker has applied more."""
        self._deletions.advance()
        leadership = self._leadership
        settled = self._shards.settled_revision
        if self._forwarded:
            forwarded, self._forwarded = self._forwarded, []
            for waiting in forwarded:
                self._answer_when_applied(waiting.end, waiting.results, waiting.done)
        if leadership is not None:
            while leadership.waiting and leadership.waiting[0].end <= settled:
                waiting = leadership.waiting.popleft()
                waiting.done(waiting.results)
        self._check_ready()

    def _check_ready(self) -> None:
        if self._shards.settled_revision >= self._committed.revision:
            self._registration.check_ready()

    # Leading

    def _on_serving(self, term: Term) -> None:
        """The term start is committed: this replica has every committed command in its log."""
        operator_log.info("this broker is the controller (term %d)", term)
        self._serving_from = self._group.committed_offset
        self._begin()

    def _begin(self) -> None:
        """Start to decide, once everything that was committed before this leadership is applied."""
        if self._serving_from is None or self.commands.next_offset < self._serving_from:
            return
        self._serving_from = None
        self.plans.begin()
        liveness = Liveness(self._registration.node, self._shard.reactor.now_us())
        state = self._committed.copy()
        spender = spender_of(self._cache.start_settings, state, self._shard.reactor.now_us)
        self._leadership = leadership = _Leadership(state, liveness, spender)
        if not leadership.state.exists:
            self._decide(leadership, CreateCluster(self._registration.request.cluster_id), ignore)

    def _on_resign(self) -> None:
        self._serving_from, leadership, self._leadership = None, self._leadership, None
        if leadership is not None:
            self.plans.take_overs.end()
            for waiting in leadership.waiting:
                waiting.done(OutcomeUnknown(_RESIGNED, ErrorCode.NOT_CONTROLLER))

    # Brokers

    def _tick(self) -> None:
        """Keep this broker registered; as the leader, fence silent brokers."""
        registration = self._registration
        if self._stopping or registration.is_leaving:
            return
        leadership = self._leadership
        if leadership is not None:
            self._fence(leadership)
            self.plans.carry_out(leadership.state)
        self._figures.show(self._committed, self._group.term, active=self.is_deciding)
        registration.tick()
        self._check_ready()
        self._shard.reactor.call_later(registration.interval_us, self._tick)

    def _fence(self, leadership: _Leadership) -> None:
        """Fence silent brokers, and unfence those that are alive again."""
        for request in leadership.liveness.due(leadership.state, self._shard.reactor.now_us()):
            self._decide(leadership, request, ignore)

    def _serve_quorum(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, payload
        group, leader = self._group, self.leader
        now, controls = self._shard.reactor.now_us(), group.log.raft.controls
        reply.send(
            encode(
                Quorum(
                    group.term,
                    group.high_watermark,
                    group.log.next_offset,
                    -1 if leader is None else leader,
                    self.voters,
                    tuple(
                        (node_of(peer.replica), controls.offset_at(peer.received), (now - peer.contact_us) // 1000)
                        for peer in group.peers
                    ),
                )
            )
        )


class ClusterFigures:
    """The gauges. Lifecycle: made with the controller. Shard: the controller's."""

    def __init__(self, stats: StatsSlab) -> None:
        self._active = stats.gauge("controller_active")
        self._term = stats.gauge("controller_term")
        self._alive = stats.gauge("cluster_brokers", state="alive")
        self._fenced = stats.gauge("cluster_brokers", state="fenced")
        self._moves = stats.gauge("cluster_moves")
        self._take_overs = stats.counter("take_overs")
        self._restored = stats.counter("take_over_partitions")

    def count(self, commands: Sequence[AnyCommand], cache: MetadataCache) -> None:
        """Count what ``commands``, which were just committed, do; ``cache`` still holds what they change."""
        self._take_overs.inc(sum(is_take_over(command, cache) for command in commands))
        self._restored.inc(
            sum(len(one.changes) for one in commands if isinstance(one, ReplicasChanged) and one.version)
        )

    def show(self, state: ControllerState, term: Term, *, active: bool) -> None:
        """Set them; ``active``: this broker is the controller."""
        registry = state.registry
        self._moves.set(len(state.moves))
        alive = len(registry.alive())
        self._active.set(int(active))
        self._term.set(term)
        self._alive.set(alive)
        self._fenced.set(len(registry.brokers) - alive)

"""The controller, which makes all changes of the cluster. It runs on shard 0, on top of Raft group 0.

::

    request ──decide──► commands ──replicate──► group 0's log ──commit──► every shard's follower ──applied──► answer
                           │                        (WAL sync)               (partitions are open)
                           └─► leader's state: runs ahead of the commit, so that requests need not wait for each other

What it promises: a request that was answered as done is durable and visible on every shard. Requests are decided in the
order of their arrival, each against all earlier decisions. An answer waits until these decisions are durable, so no
client learns of a topic that a crash could still remove.

**Start of a broker**, in this order:

1. Recovery (child of the supervisor) puts group 0's log in order first: ``<data>/controller/log``. Then
   ``load_state(disk, data_dir)`` tells it where the other groups' logs are: ``state.groups()``.
2. The supervisor calls ``load_cluster(disk, settings)`` before it forks: state and placement, the same for every shard.
3. Each shard makes its ``MetadataCache``, ``Follower``, ``ControllerClient`` and ``ProducerIds``, subscribes its
   listeners and opens the partitions of ``cache.topics()`` whose ``home_shard`` it is. ``follower.report_leader`` tells
   of leader epochs other than the metadata's.
4. Shard 0 also opens group 0's log with ``controller_log_config`` and makes the ``Controller`` on it.
5. When all shards have got that far, ``controller.start(done)``: on an empty directory it creates the cluster
   (``cluster_created``). ``done`` is called when every shard has applied that; then the broker may serve.

**Stop**: ``controller.stop(done)`` refuses new requests, waits for those in flight, saves a snapshot; then the storage
stops.

**Crash** at any point: the log's durable prefix decides. A request that was not answered may have been carried out.

**Overload**: at most ``PENDING_MAX`` requests wait; more are refused with a retriable error, nothing done. No memory
for the log: the same. A caller that waits no longer (``timeout_ms``) gets an unknown outcome from its
mailbox.
"""

import base64
import uuid
from collections import deque
from collections.abc import Callable

from millstream.cluster.announce import announce
from millstream.cluster.follower import Follower
from millstream.cluster.messages import QUORUM, Commit, Quorum, encode
from millstream.cluster.metadata import MetadataCache, live_settings
from millstream.cluster.mutation_quotas import SpenderOf, spender_of
from millstream.cluster.own_shards import PENDING_MAX, Done, OwnShards, append_commands
from millstream.cluster.placement import Placement
from millstream.cluster.snapshots import Snapshots
from millstream.config.settings import Settings
from millstream.config.topic_properties import TopicConfig
from millstream.config.topic_resolution import topic_config
from millstream.core.controller.commands import (
    AnyCommand,
    NodeConfigsChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from millstream.core.controller.decide import Rules, decide
from millstream.core.controller.requests import AnyRequest, CreateCluster, Results
from millstream.errors import Corruption, MillstreamError, Retriable, ShuttingDown, Unavailable
from millstream.iobuf import ArenaFull
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.raft.group import Group
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply


class _Pending:
    """A request that was decided and waits for ``end``: the revision that every shard must reach."""

    __slots__ = ("done", "end", "results")

    def __init__(self, end: int, results: Results, done: Done) -> None:
        self.end = end
        self.results = results
        self.done = done


class Controller:
    """The controller of a single broker: orders requests, makes them durable, applies them.

    Lifecycle: made with the shard, ``start`` once all shards run, ``stop`` before the storage stops.
    Shard: 0.
    Invariants: ``_state`` is the committed state plus ``_uncommitted``; ``_pending`` is sorted by ``end``.
    """

    def __init__(
        self,
        shard: Shard,
        group: Group,
        cache: MetadataCache,
        follower: Follower,
        placement: Placement,
        snapshots: Snapshots,
    ) -> None:
        """``cache`` and ``follower`` are shard 0's; ``placement`` is the loaded one, from now on kept here.

        Raises:
            Corruption: the log does not end where the loaded state does.
        """
        if group.log.next_offset != cache.revision:
            raise Corruption(f"the controller's log ends at {group.log.next_offset}, its state at {cache.revision}")
        self._shard = shard
        self._group = group
        self._cache = cache
        self._placement = placement
        self._snapshots = snapshots
        self._state = cache.state.copy()
        self._rules = self._rules_now(spender_of(cache.start_settings, self._state, shard.reactor.now_us))
        self._shards = OwnShards(shard, follower, cache.revision, self.submit, self._on_applied)
        self._uncommitted: deque[Commit] = deque()
        self._pending: deque[_Pending] = deque()
        self._commit_seen = False
        self._stopped: Callable[[], None] | None = None
        """Called when everything pending is done; set while the controller stops."""
        group.events.on_commit = self._on_commit
        shard.mailbox.serve(QUORUM, self._serve_quorum)

    # Life

    def start(self, done: Callable[[MillstreamError | None], None]) -> None:
        """Create the cluster unless it exists; ``done`` is called when every shard knows it."""
        self.submit(
            CreateCluster(new_cluster_id()),
            lambda result: done(result if isinstance(result, MillstreamError) else None),
        )

    def stop(self, done: Callable[[], None]) -> None:
        """Refuse new requests; call ``done`` when those in flight are answered and a snapshot is saved."""
        assert self._stopped is None
        self._stopped = done
        if not self._pending:
            self._snapshots.stop(done)

    @property
    def leader(self) -> NodeId:
        """The active controller: this broker."""
        return NodeId(self._cache.node_id)

    @property
    def voters(self) -> tuple[int, ...]:
        """The brokers that hold the controller's log."""
        return (self._cache.node_id,)

    # A request

    def submit(self, request: AnyRequest, done: Done) -> None:
        """Decide ``request`` and carry it out; ``done`` gets the results when every shard has applied them."""
        if self._stopped is not None:
            done(ShuttingDown("the broker is stopping", ErrorCode.NOT_CONTROLLER))
            return
        if len(self._pending) >= PENDING_MAX:
            done(Retriable(f"the controller has {PENDING_MAX} requests in flight", ErrorCode.THROTTLING_QUOTA_EXCEEDED))
            return
        decision = decide(self._state, request, self._rules)
        if decision.commands:
            try:
                self._replicate(decision.commands)
            except ArenaFull:
                done(Unavailable("no memory for the controller's log; nothing was changed"))
                return
            except MillstreamError as error:
                done(error)
                return
        if self._shards.settled_revision >= self._state.revision:
            done(decision.results)
        else:
            self._pending.append(_Pending(self._state.revision, decision.results, done))

    def _replicate(self, commands: tuple[AnyCommand, ...]) -> None:
        """Append ``commands`` to the log as one batch, and let the leader's state run ahead."""
        base = self._state.revision
        append_commands(self._group, commands, base, self._shard.reactor.wall_ms())
        homes: list[int] = []
        for command in commands:
            self._place(command, homes)
            self._state.apply(command)
            if isinstance(command, NodeConfigsChanged):
                self._rules = self._rules_now(self._rules.spender)
        self._uncommitted.append(Commit(base, commands, tuple(homes)))

    def _place(self, command: AnyCommand, homes: list[int]) -> None:
        """Choose the home shards of new partitions; drop those of a deleted topic."""
        if isinstance(command, TopicCreated):
            homes += self._placement.place(part.raft_group for part in command.partitions)
        elif isinstance(command, PartitionsAdded):
            siblings = [part.raft_group for part in self._state.topics.by_id[command.topic_id].partitions]
            homes += self._placement.place((part.raft_group for part in command.partitions), siblings)
        elif isinstance(command, TopicDeleted):
            topic = self._state.topics.by_id[command.topic_id]
            self._placement.forget(part.raft_group for part in topic.partitions)

    def _rules_now(self, spender: SpenderOf) -> Rules:
        start = self._cache.start_settings
        return Rules(start.node_id, live_settings(self._state, start), start, new_topic_id, spender=spender)

    # Commit, apply, answer

    def _on_commit(self, high_watermark: int) -> None:
        """More of group 0's log is durable. Shards get the commands in a callback of their own."""
        _ = high_watermark
        if not self._commit_seen:
            self._commit_seen = True
            self._shard.reactor.call_soon(self._tell_commits)

    def _tell_commits(self) -> None:
        self._commit_seen = False
        high_watermark = self._group.high_watermark
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0].end <= high_watermark:
            commit = uncommitted.popleft()
            announce(commit.commands, self._cache)
            self._shards.follow(commit)
            self._snapshots.state_changed()

    def _on_applied(self) -> None:
        """A shard has applied more: answer the requests for which it was the last one."""
        settled = self._shards.settled_revision
        pending = self._pending
        while pending and pending[0].end <= settled:
            each = pending.popleft()
            each.done(each.results)
            if self._stopped is not None and not pending:
                self._snapshots.stop(self._stopped)

    def _serve_quorum(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, payload
        group = self._group
        node = self._cache.node_id
        reply.send(encode(Quorum(group.term, group.high_watermark, group.log.next_offset, node, (node,))))


def controller_log_config(settings: Settings, segment_bytes: int | None = None) -> TopicConfig:
    """How group 0's log is kept: everything until a snapshot allows to trim it, in segments small enough to trim."""
    return topic_config(
        {
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "segment.bytes": "1048576",
            "segment.ms": str(2**63 - 1),
            "write.caching": "false",
            **({} if segment_bytes is None else {"internal.segment.bytes": str(segment_bytes)}),
        },
        settings,
    )


def new_topic_id() -> bytes:
    """A random id that Kafka does not reserve and whose text does not start like a command-line option."""
    while True:
        made = uuid.uuid4().bytes
        if int.from_bytes(made, "big") > 1 and not _text(made).startswith("-"):
            return made


def new_cluster_id() -> str:
    """A random id as Kafka writes one: a UUID in URL-safe base 64, 22 characters."""
    return _text(new_topic_id())


def _text(made: bytes) -> str:
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode()

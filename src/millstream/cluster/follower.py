"""Applies the controller's commands to a shard's metadata cache, and reports its progress.

Every shard has a follower, the controller's included, so that the same code changes all caches. Commits arrive in order
and wait in a queue. One background task applies them, because opening the partitions of a large topic takes longer than
a turn may. When the partitions of a commit are open, the follower reports that to the controller, which answers its
client after all shards have reported. The client's next request thus finds what it created, whichever shard receives
it.

A shard that was loaded from files newer than its first commits finds those commits applied, and only reports them. A
gap is impossible, because the mailbox loses nothing. The controller bounds the queue.

In the other direction: a partition's home shard is the first to know its leader epoch (after a crash it is higher than
the controller's), and which replicas are in sync. ``report_leader`` sends it to all shards, together with the others
of the same turn. It says which commands the sender has applied: a shard that lags behind takes the report after them,
because it may not know the topic yet.
"""

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from millstream.cluster.messages import (
    APPLIED,
    APPLY,
    BEGIN,
    CONTROLLER_SHARD,
    LEADERS,
    Commit,
    LeaderEpochs,
    decode_commit,
    decode_leaders,
    decode_revision,
    encode,
)
from millstream.cluster.metadata import MetadataCache
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply

SHARE: Final = 0.5
"""Share of the core for applying commands while there is other work."""


class Follower:
    """The follower of one shard.

    Lifecycle: made after the cache and its first listeners, before the reactor runs. Shard: one each.
    """

    def __init__(self, shard: Shard, cache: MetadataCache) -> None:
        self._shard = shard
        self._cache = cache
        self._queue: deque[Commit] = deque()
        self._applying = False
        self._early: deque[tuple[int, list[LeaderEpochs]]] = deque()
        """Reports of other shards that wait until this one has applied the revision, in the order of their arrival."""
        self._leaders: dict[bytes, dict[int, tuple[int, int, tuple[int, ...]]]] = {}
        self.on_applied: Callable[[int], None] = self._tell_controller
        """Called with the revision when a commit is applied. The controller replaces it on its own shard."""
        self.on_leaders: Callable[[list[LeaderEpochs]], None] = _unreported
        """Called with leaders that a shard of this broker reported. The controller's shard tells other brokers."""
        self.settle: Callable[[Callable[[], None]], None] = _at_once
        """Calls back when what was applied is durable on this shard. Set where several brokers rely on that."""
        self.begin: Callable[[int], Generator[None, None, None]] = _nothing
        """Starts the new replicas of commands below a revision, in steps: their creation is noted durably."""
        self._revision = shard.stats.gauge("cluster_metadata_revision")
        self._topics = shard.stats.gauge("cluster_topics")
        self._measure()
        shard.mailbox.serve(APPLY, self._serve_apply)
        shard.mailbox.serve(LEADERS, self._serve_leaders)
        shard.mailbox.serve(BEGIN, self._serve_begin)

    def follow(self, commit: Commit) -> None:
        """Apply ``commit`` after those before it."""
        self._queue.append(commit)
        if not self._applying:
            self._applying = True
            self._shard.reactor.background("other", self._apply_all(), SHARE)

    def let_begin(self, revision: int) -> None:
        """The new replicas of this shard that commands below ``revision`` have made start (`creations`)."""
        self._shard.reactor.background("other", self.begin(revision), SHARE)

    def report_leader(self, topic_id: bytes, index: int, leader_epoch: int, in_sync: tuple[int, ...] = ()) -> None:
        """Report that this shard leads a partition in ``leader_epoch``, and the nodes of the replicas ``in_sync`` (none
        for all of them). Every shard then shows it in its metadata.
        """
        self.report_heard(topic_id, index, leader_epoch, self._cache.node_id, in_sync)

    def report_heard(
        self, topic_id: bytes, index: int, leader_epoch: int, leader: int, in_sync: tuple[int, ...] = ()
    ) -> None:
        """Report the leader of a replica of this shard, or that it knows none (`UNKNOWN`, `LOST`)."""
        if not self._leaders:
            self._shard.reactor.end_of_turn(self._tell_leaders)
        self._leaders.setdefault(topic_id, {})[index] = (leader_epoch, leader, in_sync)

    def learn_leaders(self, changed: list[LeaderEpochs]) -> None:
        """Let every shard of this broker show these leaders, which are on other brokers."""
        self._take_leaders(changed)
        payload = encode((self._cache.revision, changed))
        for shard in range(self._shard.count):
            if shard != self._shard.id:
                self._shard.mailbox.tell(shard, LEADERS, payload)

    def _apply_all(self) -> Generator[None, None, None]:
        cache = self._cache
        queue = self._queue
        while queue:
            commit = queue.popleft()
            if commit.end > cache.revision:
                assert commit.base == cache.revision, f"commit {commit.base} after revision {cache.revision}"
                homes = iter(commit.homes)
                for command in commit.commands:
                    yield from cache.apply(command, homes)
                    yield
                assert next(homes, None) is None, "a commit places partitions that it does not create"
            self._take_early()
            self._measure()
            self.settle(partial(self._report, commit.end))
        self._applying = False

    def _report(self, revision: int) -> None:
        self.on_applied(revision)

    def _measure(self) -> None:
        self._revision.set(self._cache.revision)
        if self._shard.id == CONTROLLER_SHARD:
            self._topics.set(len(self._cache.names()))

    def _serve_apply(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self.follow(decode_commit(payload))

    def _serve_begin(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self.let_begin(decode_revision(payload))

    def _tell_controller(self, revision: int) -> None:
        self._shard.mailbox.tell(CONTROLLER_SHARD, APPLIED, encode(revision))

    def _tell_leaders(self) -> None:
        changed = [
            LeaderEpochs(topic_id, [(index, *fact) for index, fact in facts.items()])
            for topic_id, facts in self._leaders.items()
        ]
        self._leaders = {}
        self.learn_leaders(changed)
        self.on_leaders(changed)

    def _serve_leaders(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self._early.append(decode_leaders(payload))
        self._take_early()

    def _take_early(self) -> None:
        while self._early and self._early[0][0] <= self._cache.revision:
            _, changed = self._early.popleft()
            self._take_leaders(changed)
            self.on_leaders(changed)

    def _take_leaders(self, changed: list[LeaderEpochs]) -> None:
        for each in changed:
            self._cache.set_leader_epochs(each.topic_id, each.epochs)


def _at_once(done: Callable[[], None]) -> None:
    done()


def _nothing(_: int) -> Generator[None, None, None]:
    yield from ()


def _unreported(_: list[LeaderEpochs]) -> None:
    """There is no other broker."""

"""The follower: applies the controller's commands to a shard's metadata cache, and says how far it has come.

Every shard has one, the controller's included, so that all caches change by the same code. Commits come in order and
wait in a queue; one background task takes them off, because opening the partitions of a large topic takes longer than a
turn may. When the partitions of a commit are open, the controller is told, and answers whoever asked once all shards
have said so: the client's next request finds what it created, whichever shard it lands on.

A shard that was loaded from files that were newer than the first commits it is told finds those commits applied, and
only says so. A gap cannot be: the mailbox loses nothing. The queue is bounded by what the controller has under way.

The way back: a partition's leader epoch is known on its home shard first (after a crash it is higher than the
controller said); ``report_leader`` tells it to all shards, together with the others of the same turn.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import Final

from millstream.cluster.messages import (
    APPLIED,
    APPLY,
    CONTROLLER_SHARD,
    LEADERS,
    Commit,
    LeaderEpochs,
    decode_commit,
    decode_leaders,
    encode,
)
from millstream.cluster.metadata import MetadataCache
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply

SHARE: Final = 0.5
"""Part of the core that applying may take while there is other work."""


class Follower:
    """See the module.

    Lifecycle: made after the cache and its first listeners, before the reactor runs.
    Shard: one each.
    """

    def __init__(self, shard: Shard, cache: MetadataCache) -> None:
        self._shard = shard
        self._cache = cache
        self._queue: deque[Commit] = deque()
        self._applying = False
        self._leaders: dict[bytes, dict[int, int]] = {}
        self.on_applied: Callable[[int], None] = self._tell_controller
        """Called with the revision when a commit is applied; the controller takes it over on its own shard."""
        self._revision = shard.stats.gauge("cluster_metadata_revision")
        self._topics = shard.stats.gauge("cluster_topics")
        self._measure()
        shard.mailbox.serve(APPLY, self._serve_apply)
        shard.mailbox.serve(LEADERS, self._serve_leaders)

    def follow(self, commit: Commit) -> None:
        """Apply ``commit`` after those before it."""
        self._queue.append(commit)
        if not self._applying:
            self._applying = True
            self._shard.reactor.background("other", self._apply_all(), SHARE)

    def report_leader(self, topic_id: bytes, index: int, leader_epoch: int) -> None:
        """A partition of this shard leads in ``leader_epoch``; every shard will show it in its metadata."""
        if not self._leaders:
            self._shard.reactor.end_of_turn(self._tell_leaders)
        self._leaders.setdefault(topic_id, {})[index] = leader_epoch

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
            self._measure()
            self.on_applied(commit.end)
        self._applying = False

    def _measure(self) -> None:
        self._revision.set(self._cache.revision)
        if self._shard.id == CONTROLLER_SHARD:
            self._topics.set(len(self._cache.names()))

    def _serve_apply(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self.follow(decode_commit(payload))

    def _tell_controller(self, revision: int) -> None:
        self._shard.mailbox.tell(CONTROLLER_SHARD, APPLIED, encode(revision))

    def _tell_leaders(self) -> None:
        changed = [LeaderEpochs(topic_id, list(epochs.items())) for topic_id, epochs in self._leaders.items()]
        self._leaders = {}
        self._take_leaders(changed)
        payload = encode(changed)
        for shard in range(self._shard.count):
            if shard != self._shard.id:
                self._shard.mailbox.tell(shard, LEADERS, payload)

    def _serve_leaders(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self._take_leaders(decode_leaders(payload))

    def _take_leaders(self, changed: list[LeaderEpochs]) -> None:
        for each in changed:
            self._cache.set_leader_epochs(each.topic_id, each.epochs)

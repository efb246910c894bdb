"""Passes committed commands to this broker's shards. A command that removes files waits until the next start would know
of it.

::

    committed commands ──► Deletions ──► own shards
                              │ before a deletion: every shard has what came before it, durably; then the mark is moved
                              └──► committed mark (`revision_marks`)

Commands keep their order: the commands after a deletion wait, too. **Crash.** Before the mark is durable the topic and
its files are there; after it, the next start does not open the topic, and removes what is left of its files.
**Failure.** A disk that refuses the mark delays the deletion; it is tried again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from millstream.core.controller.commands import ReplicasChanged, TopicDeleted
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.messages import Commit
    from millstream.shard.reactor import Reactor

REMOVING: Final = (TopicDeleted, ReplicasChanged)
"""Commands by which a broker removes files of a replica."""

_AGAIN_US: Final = 500_000


class Deletions:
    """The commits of one broker that its shards have not received yet.

    Lifecycle: made with the controller; ``advance`` after a shard has applied more. Shard: the controller's. Invariant:
    commits leave in the order in which they came.
    """

    def __init__(
        self,
        reactor: Reactor,
        move_mark: Callable[[int], None],
        settled: Callable[[], int],
        follow: Callable[[Commit], None],
    ) -> None:
        """``move_mark`` makes a revision durable, or raises OSError. ``settled()`` is the revision that every shard has
        applied durably. ``follow`` hands a commit to the shards.
        """
        self._reactor = reactor
        self._move_mark = move_mark
        self._settled = settled
        self._follow = follow
        self._waiting: deque[Commit] = deque()
        self._refused = False

    def pass_on(self, commit: Commit) -> None:
        """Pass a commit to the shards, now or when the mark allows it."""
        self._waiting.append(commit)
        self.advance()

    def advance(self) -> None:
        """Pass on the commits that the mark allows."""
        while self._waiting:
            commit = self._waiting[0]
            if any(isinstance(command, REMOVING) for command in commit.commands) and not self._marked(commit):
                return
            self._waiting.popleft()
            self._follow(commit)

    def _marked(self, commit: Commit) -> bool:
        if self._refused or self._settled() < commit.base:
            return False
        try:
            self._move_mark(commit.end)
        except OSError as error:
            operator_log.warning("a deletion waits, because the data directory cannot be written: %s", error.strerror)
            self._refused = True
            self._reactor.call_later(_AGAIN_US, self._try_again)
            return False
        return True

    def _try_again(self) -> None:
        self._refused = False
        self.advance()

"""New replicas whose group has an assigned leader: they start once this broker's disk says that they were made.

::

    commit creates partitions ──► every shard has made its replicas, durably ──► the mark is moved ──BEGIN──► the groups
                                                                                                  of all shards start

The first leader of such a group leads without an election, once (`core.raft.beginning`). The committed mark is what it
goes by after a crash: a start takes a partition below the mark that has no files for one that has lost them.

**Crash.** Before the mark is durable no replica has led; after it the groups elect. **Failure.** A disk that refuses
the mark delays the start; it is tried again, and until then the groups may elect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.cluster.placement import ELSEWHERE
from millstream.core.controller.commands import PartitionsAdded, TopicCreated
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.messages import Commit
    from millstream.shard.reactor import Reactor

_AGAIN_US: Final = 500_000


class Creations:
    """The new replicas of one broker that have not started.

    Lifecycle: made with the controller; `advance` after a shard has applied more. Shard: the controller's.
    Invariant: ``_due`` rises, and has the ends of the commits with such replicas that have not started.
    """

    def __init__(
        self,
        reactor: Reactor,
        move_mark: Callable[[int], None],
        settled: Callable[[], int],
        begin: Callable[[int], None],
    ) -> None:
        """``move_mark`` makes a revision durable, or raises OSError. ``settled()`` is the revision that every shard has
        applied durably. ``begin`` starts the replicas of commands below a revision, on every shard.
        """
        self._reactor = reactor
        self._move_mark = move_mark
        self._settled = settled
        self._begin = begin
        self._due: list[int] = []
        self._refused = False

    def note(self, commit: Commit) -> None:
        """A commit is on its way to the shards."""
        if any(home != ELSEWHERE for home in commit.homes) and any(
            isinstance(command, TopicCreated | PartitionsAdded) and command.version for command in commit.commands
        ):
            self._due.append(commit.end)

    def advance(self) -> None:
        """Start those that every shard has made."""
        if not self._due or self._refused:
            return
        settled = self._settled()
        if self._due[0] > settled:
            return
        try:
            self._move_mark(settled)
        except OSError as error:
            operator_log.warning(
                "new partitions wait, because the data directory cannot be written: %s", error.strerror
            )
            self._refused = True
            self._reactor.call_later(_AGAIN_US, self._try_again)
            return
        self._due = [end for end in self._due if end > settled]
        self._begin(settled)

    def _try_again(self) -> None:
        self._refused = False
        self.advance()

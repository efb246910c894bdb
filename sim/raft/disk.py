"""What the disk of one replica really holds: votes and a log, not files, of which `sim.engine.disk` has the only disk.

Operations are queued in the order of the write-ahead log and reach the disk with a sync, in that order. A power failure
keeps some first part of what was queued, by chance. The image is the disk's own truth: it does not come from the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from millstream.core.raft.ready import LogPersisted, VoteState
from millstream.model.replication import NO_REPLICA, RaftPosition, Term
from sim.raft.image import LogImage

if TYPE_CHECKING:
    import random

    from millstream.core.raft.messages import Configuration, LogPoint
    from sim.raft.image import Unit


class Vote(NamedTuple):
    """A vote record."""

    state: VoteState


class Write(NamedTuple):
    """A cut, if ``cut`` is set, and units behind it; ``term`` is that of the write."""

    cut: int | None
    units: tuple[Unit, ...]
    end: int
    term: int


class Fold(NamedTuple):
    """The base moves up to ``position``."""

    position: int


class Adopt(NamedTuple):
    """Installed files replace the log."""

    base: LogPoint
    chain: int
    configuration: Configuration
    term: int


Operation: TypeAlias = Vote | Write | Fold | Adopt


class Synced(NamedTuple):
    """What a sync has made durable, as completions."""

    state: VoteState | None
    log: LogPersisted | None


class LogDisk:
    """A disk with its queue. ``syncing`` operations at the front of the queue are being synced."""

    def __init__(self, configuration: Configuration) -> None:
        self.state = VoteState(Term(0), NO_REPLICA)
        self.image = LogImage(configuration)
        self.queue: list[Operation] = []
        self.syncing = 0
        self.stalled_until = 0
        """Time before which no sync ends."""

    def end_sync(self) -> Synced:
        """The running sync has ended."""
        done, self.queue = self.queue[: self.syncing], self.queue[self.syncing :]
        self.syncing = 0
        state: VoteState | None = None
        log: LogPersisted | None = None
        for operation in done:
            self._apply(operation)
            if isinstance(operation, Vote):
                state = operation.state
            elif isinstance(operation, Write):
                log = LogPersisted(RaftPosition(operation.end), Term(operation.term))
            elif isinstance(operation, Adopt):
                log = LogPersisted(operation.base.position, Term(operation.term))
        return Synced(state, log)

    def crash(self, chance: random.Random) -> None:
        """Power fails: some first part of the queue is on the disk, the rest is lost."""
        for operation in self.queue[: chance.randint(0, len(self.queue))]:
            self._apply(operation)
        self.queue.clear()
        self.syncing = 0
        self.stalled_until = 0

    def _apply(self, operation: Operation) -> None:
        if isinstance(operation, Vote):
            self.state = operation.state
        elif isinstance(operation, Write):
            if operation.cut is not None:
                self.image.truncate(operation.cut)
            for unit in operation.units:
                self.image.append(unit)
        elif isinstance(operation, Fold):
            self.image.fold(operation.position)
        else:
            self.image.reset(operation.base, operation.chain, operation.configuration)

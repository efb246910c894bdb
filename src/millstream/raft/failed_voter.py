"""The vote of a replica whose partition has failed: `core.raft.failed` over the write-ahead log.

::

    RaftShard ──message of a failed group──► FailedVoter ──vote──► write-ahead log ──durable──► answer
                                                                └──► the partition's ``quarantine`` file

The log of the partition is closed. The records of its votes go to its ``quarantine`` file with the others, so a start
and a repair find them. **Overload.** Without room in the write-ahead log there is no answer; the candidate asks again.
**A fault here** ends the vote alone: the replica is silent then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from millstream.core.raft.failed import FailedReplica
from millstream.format.wal import Kind
from millstream.iobuf import ArenaFull
from millstream.model.replication import LogPoint, TimeUs
from millstream.peers.raft_items import RaftItem
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.raft.failed import Answer
    from millstream.core.raft.messages import Message
    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import ReplicaId
    from millstream.raft.transport import Transport
    from millstream.storage.log.log import Log

_NO_PAYLOAD: Final = (0, 0, 0)


class VoterHost(Protocol):
    """What a vote needs of its shard."""

    transport: Transport

    def now(self) -> TimeUs:
        """Monotonic time."""
        ...

    def stop_voting(self, group: RaftGroupId) -> None:
        """The replica is silent from now on."""
        ...


class FailedVoter:
    """One failed replica. Lifecycle: made when its partition fails, until it is opened again or removed."""

    __slots__ = ("_core", "_host", "_name", "_saved", "_set_aside", "_wal", "group", "tick_serial")

    def __init__(
        self, host: VoterHost, log: Log, set_aside: Callable[[], None], timeout_us: int, *, has_led: bool
    ) -> None:
        """``log`` has failed. ``set_aside``: what the write-ahead log has of the group goes to its ``quarantine`` file
        once more. ``has_led``: this replica was the leader.
        """
        self.group = log.group
        self.tick_serial = 0
        self._host = host
        self._name = log.name
        self._wal = log.host.wal
        self._set_aside = set_aside
        end = log.ends.durable.raft_position
        point = LogPoint(end, log.raft.term_before(end))  # pyright: ignore[reportArgumentType]
        contact_us = TimeUs(-timeout_us if has_led else host.now())
        self._core = FailedReplica(log.raft.vote.term, log.raft.vote.voted_for, point, timeout_us, contact_us)
        self._saved = (log.raft.durable_vote.term, log.raft.durable_vote.voted_for)
        """The newest vote that is durable."""

    def on_message(self, sender: ReplicaId, message: Message) -> None:
        """A message for the group."""
        answer = self._core.step(self._host.now(), sender, message)
        if answer is None:
            return
        vote = self._core.term, self._core.voted_for
        if answer.is_vote and vote != self._saved:
            self._save(*vote, partial(self._voted, sender, answer, vote))
        else:
            self._send(sender, answer)

    def _save(self, term: int, voted_for: ReplicaId, done: Callable[[], None]) -> None:
        try:
            self._wal.add_note(self, Kind.VOTE, voted_for, self._core.end.position, _NO_PAYLOAD, done, term)
        except ArenaFull:
            return
        self._set_aside()

    def _voted(self, sender: ReplicaId, answer: Answer, vote: tuple[int, ReplicaId]) -> None:
        self._saved = max(self._saved, vote)
        if vote == (self._core.term, self._core.voted_for):
            self._send(sender, answer)

    def _send(self, to: ReplicaId, answer: Answer) -> None:
        self._host.transport.send(to, RaftItem(self.group, answer.message))

    # What the write-ahead log calls (`wal.WalLog`)

    def end(self) -> Any:
        """Nothing of the log grows."""
        return None

    def became_durable(self, end: Any) -> None:
        """A vote is durable; its callback says so."""

    def failed(self, verb: str, error: Exception) -> None:
        """A fault of the vote alone."""
        operator_log.at(self._name).exception("failed in %s: %r; this replica votes no more", verb, error)
        self._host.stop_voting(self.group)

    def guard(self, verb: str, call: Callable[..., object], *arguments: object) -> None:
        """Run a step of the vote."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 - the boundary
            self.failed(verb, error)

"""A replica whose owner has failed votes on, from what its disk has, and does nothing else.

::

    VoteRequest ──► granted once a term, to a log at least as new as the durable end here; durable before the answer
    Inquiry     ──► answered: a replica that has lost its log needs the term of all others
    Heartbeat, Append of a leader ──► noted: a replica with a live leader grants no vote. Never answered

It never stands, leads, takes an entry or acknowledges one. Without its vote, a group of three with another replica away
would have no leader, and none could fill this replica again. What it has acknowledged is before its durable end, so
its vote promises what it always did. The rules are those of `election` and `rejoining`, without priorities.

**Bad input.** Other messages have no effect. **Crash.** A vote is sent when it is durable, as that of any replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.core.raft.leaps import Leaps
from millstream.core.raft.messages import (
    Append,
    Heartbeat,
    Inquiry,
    InquiryReply,
    Message,
    NewerTerm,
    VoteReply,
    VoteRequest,
)
from millstream.model.replication import NO_REPLICA

if TYPE_CHECKING:
    from millstream.model.replication import LogPoint, ReplicaId, Term, TimeUs


class Answer(NamedTuple):
    """A message to the sender of the one that was taken."""

    message: Message
    is_vote: bool = False
    """It is sent when term and vote of the replica are durable."""


class FailedReplica:
    """Lifecycle: made when the owner fails, with the newest term and vote that were to be saved."""

    __slots__ = ("_contact_us", "_leader", "_leaps", "_timeout_us", "end", "term", "voted_for")

    def __init__(self, term: Term, voted_for: ReplicaId, end: LogPoint, timeout_us: int, contact_us: TimeUs) -> None:
        """``end`` is the durable end of the log, ``contact_us`` when a leader was there at the latest."""
        self.term = term
        self.voted_for = voted_for
        """In ``term``; NO_REPLICA if the vote is free."""
        self.end = end
        self._timeout_us = timeout_us
        self._leaps = Leaps()
        self._contact_us: int = contact_us
        self._leader = NO_REPLICA
        """Who leads in ``term``, as far as this replica knows."""

    def step(self, now: TimeUs, sender: ReplicaId, message: Message) -> Answer | None:
        """Take a message."""
        if self.end.position and self._leaps.bars(now, self.term, message.term):
            return None
        match message:
            case VoteRequest():
                return self._vote(now, sender, message)
            case Inquiry():
                return Answer(InquiryReply(self.term, message.number, self.end.position, leads=False))
            case Heartbeat() | Append() if message.term >= self.term:
                self._begin(message.term)
                self._leader, self._contact_us = sender, now
            case _:
                pass
        return None

    def _begin(self, term: Term) -> None:
        if term > self.term:
            self.term, self.voted_for, self._leader = term, NO_REPLICA, NO_REPLICA

    def _vote(self, now: TimeUs, sender: ReplicaId, request: VoteRequest) -> Answer:
        if request.term < self.term:
            return Answer(NewerTerm(self.term))
        has_leader = now - self._contact_us < self._timeout_us
        if has_leader and not request.transfer:
            return self._refusal(request)
        if not request.pre:
            self._begin(request.term)
        if not (self._is_free(sender, request) and self._is_up_to_date(request.log_end)):
            return self._refusal(request)
        reply = VoteReply(request.term, granted=True, pre=request.pre)
        if request.pre:
            return Answer(reply)
        self.voted_for = sender
        self._contact_us = now
        return Answer(reply, is_vote=True)

    def _is_free(self, candidate: ReplicaId, request: VoteRequest) -> bool:
        if (request.pre and request.term > self.term) or self.voted_for == candidate:
            return True
        return self.voted_for == NO_REPLICA and self._leader == NO_REPLICA

    def _is_up_to_date(self, end: LogPoint) -> bool:
        return end.term > self.end.term or (end.term == self.end.term and end.position >= self.end.position)

    def _refusal(self, request: VoteRequest) -> Answer:
        return Answer(VoteReply(self.term, granted=False, pre=request.pre))

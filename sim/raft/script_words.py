"""Messages, members and entries of a script's transcript, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.messages import (
    Append,
    AppendRejected,
    AppendReply,
    Configuration,
    Heartbeat,
    Inquiry,
    InquiryReply,
    InstallOffer,
    NewerTerm,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from millstream.core.raft.ready import UNKNOWN_END
from millstream.model.replication import node_of

if TYPE_CHECKING:
    from millstream.core.raft.messages import Message


def members_in_words(configuration: Configuration) -> str:
    """Voters, those of before in a joint configuration, and learners: ``(1 2 4 and 1 2 3, learns 5)``."""
    parts = " ".join(str(node_of(voter)) for voter in configuration.voters)
    if configuration.outgoing:
        parts += " and " + " ".join(str(node_of(voter)) for voter in configuration.outgoing)
    if configuration.learners:
        parts += ", learns " + " ".join(str(node_of(learner)) for learner in configuration.learners)
    return f"({parts})"


def message_in_words(message: Message) -> str:
    """A message in words."""
    match message:
        case VoteRequest(term=term, log_end=end, pre=pre):
            asked = "pre-vote" if pre else "vote"
            return f"asks for a {asked} in term {term}, its log ends at {end.position} of term {end.term}"
        case VoteReply(term=term, granted=granted, pre=pre):
            given = "pre-vote" if pre else "vote"
            return f"grants the {given} in term {term}" if granted else f"refuses the {given}, is in term {term}"
        case Append(prev=prev, runs=runs, committed=committed) if runs:
            end = runs[-1].end_position
            to = f"{end} of term {runs[-1].term}"
            return f"append from {prev.position} of term {prev.term} to {to}, committed {committed}"
        case Append(prev=prev, committed=committed):
            return f"probe at {prev.position} of term {prev.term}, committed {committed}"
        case AppendReply(received=received, durable=durable):
            return f"has {received}, synced {durable}"
        case AppendRejected(prev_position=position, damaged=True):
            return f"rejects {position}, its log before that is damaged"
        case AppendRejected(prev_position=position, hint=hint):
            return f"rejects {position}, may match at {hint.position} of term {hint.term}"
        case TimeoutNow(term=term):
            return f"stand for election, term {term} ends"
        case InstallOffer(end=end):
            return f"offers files up to {end.position} of term {end.term}"
        case Inquiry():
            return "asks for term and end, its log is lost"
        case InquiryReply(term=term, end=end):
            return "knows no term" if end == UNKNOWN_END else f"is in term {term}, its log ends at {end}"
        case Heartbeat():
            return "heartbeat"
        case NewerTerm(term=term):
            return f"there is a newer term {term}"
        case _:
            return type(message).__name__

"""Messages between replicas."""

from millstream.core.raft.messages import Append, LogPoint, TermRun, VoteRequest
from millstream.peers.items import Beat
from millstream.peers.raft_items import RaftItem


def append(group, start=0, size=0):
    message = Append(2, LogPoint(start, 1), (TermRun(start + 1, 2),), (), start, start, 1)
    return RaftItem(group, message, 0, size)


def vote(group, position=0):
    return RaftItem(group, VoteRequest(3, LogPoint(position, 1), False, False))


def beat(group, round_):
    return Beat(group, 1, 10, 10, round_)

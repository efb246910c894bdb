"""Constants of a Raft group, and the switches that tests turn.

Times are microseconds of the shell's monotonic clock. Sources: Redpanda's `raft` (heartbeat every 150 ms, election
after 1.5 s, priority, check of the quorum, first election), the Raft paper (retries after a random 150 to 300 ms).
"""

from __future__ import annotations

from msgspec import Struct

MAX_PRIORITY = 1 << 20


class RaftOptions(Struct, frozen=True):
    """Options of every group of a broker. The switches are on in production."""

    heartbeat_us: int = 150_000
    """Interval of heartbeats; a peer that answered an append within it needs none."""
    election_timeout_us: int = 1_500_000
    """Silence of the leader after which an election may start: ten heartbeats. A follower in contact with its leader
    within this time grants no vote."""
    election_jitter_min_us: int = 30_000
    """Smallest addition to the election timeout: more than a heartbeat takes to arrive, so that the tenth counts."""
    election_jitter_max_us: int = 150_000
    """Largest addition, below one heartbeat interval: ten lost heartbeats start an election before the eleventh."""
    retry_min_us: int = 150_000
    """Shortest wait before the next try of an election without a winner."""
    retry_max_us: int = 300_000
    """Longest wait before the second try. It doubles with each further try, up to eight times."""
    transfer_timeout_us: int = 1_500_000
    """After this time without a new leader, a handover of leadership is given up."""
    disk_stall_us: int = 3_000_000
    """A leader whose sync takes longer hands its leadership over. 0 switches that off."""
    max_in_flight_appends: int = 64
    """Appends to one peer that it has not reported as synced."""
    max_in_flight_bytes: int = 4 << 20
    """Bytes of those appends. One append may pass the limit."""
    pre_vote: bool = True
    """Ask whether a vote would be granted before a term is started."""
    check_quorum: bool = True
    """A leader without a majority steps down; a follower in contact with its leader grants no vote."""
    priority: bool = True
    """Replicas stand in the order of the configuration: a later one waits one try more."""
    pipelining: bool = True
    """Send the next append before the last one is answered."""
    tells_commits: bool = False
    """A leader tells its peers at once what is committed, by a heartbeat if no entries are to be sent. Without it they
    learn it from the next append, or from a heartbeat up to two intervals later. For a group whose followers act on
    what is committed and that has few entries."""

    @property
    def quorum_timeout_us(self) -> int:
        """A leader without contact to a majority for so long steps down. The answers to the tenth heartbeat count, as
        the tenth heartbeat does for a follower: their round trip has the largest jitter's time.
        """
        return self.election_timeout_us + self.election_jitter_max_us


def options_of(heartbeat_ms: int, election_timeout_ms: int) -> RaftOptions:
    """The options for other intervals than the defaults, in the defaults' proportions: the additions to the election
    timeout and the waits between tries follow the heartbeat, a handover is given up after one election timeout.
    """
    heartbeat_us = heartbeat_ms * 1000
    return RaftOptions(
        heartbeat_us=heartbeat_us,
        election_timeout_us=election_timeout_ms * 1000,
        election_jitter_min_us=heartbeat_us // 5,
        election_jitter_max_us=heartbeat_us,
        retry_min_us=heartbeat_us,
        retry_max_us=2 * heartbeat_us,
        transfer_timeout_us=election_timeout_ms * 1000,
    )

"""Times of the seed: one heartbeat of ten keeps the leader, ten lost ones start an election, and a split vote is
retried after 150 to 300 ms."""

import pytest

from millstream.config.errors import ConfigError
from millstream.config.load import load_settings
from millstream.core.raft.messages import Configuration, Heartbeat, VoteReply, VoteRequest
from millstream.core.raft.options import RaftOptions, options_of
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import Recovered, Role, VoteState
from millstream.model.replication import NO_REPLICA, RaftPosition, ReplicaId, Round, Seed, Term, TimeUs

LEADER, ME, OTHER = ReplicaId(1), ReplicaId(2), ReplicaId(3)
MEMBERS = Configuration(voters=(ME, LEADER, OTHER))
INTERVAL_US = 150_000
LATENCY_US = 10_000


def follower(seed):
    recovered = Recovered(MEMBERS, VoteState(Term(1), NO_REPLICA))
    return Raft(ME, recovered, Seed(seed), TimeUs(0))


def heartbeat_at(core, now):
    core.step(TimeUs(now), LEADER, Heartbeat(Term(1), RaftPosition(0), RaftPosition(0), Round(0)))
    core.ready()


def let_pass(core, until):
    """Tick at each deadline up to ``until``; the messages of all Readys."""
    messages = list(core.ready().messages)
    while core.deadline() <= until:
        core.deadline_passed(core.deadline())
        messages += core.ready().messages
    return messages


@pytest.mark.parametrize("seed", range(50))
def test_nine_lost_heartbeats_of_ten_start_no_election(seed):
    core = follower(seed)
    heartbeat_at(core, 0)
    for received in range(1, 5):
        now = received * 10 * INTERVAL_US + LATENCY_US
        assert let_pass(core, now) == []
        heartbeat_at(core, now)
    assert core.role is Role.FOLLOWER
    assert core.leader == LEADER


@pytest.mark.parametrize("seed", range(50))
def test_ten_lost_heartbeats_start_an_election_before_the_eleventh(seed):
    core = follower(seed)
    heartbeat_at(core, 0)
    asked = let_pass(core, 11 * INTERVAL_US)
    assert {outgoing.to for outgoing in asked} == {LEADER, OTHER}
    assert all(isinstance(outgoing.message, VoteRequest) and outgoing.message.pre for outgoing in asked)
    assert core.term == 1


@pytest.mark.parametrize("seed", range(50))
def test_a_split_vote_is_retried_after_a_random_150_to_300_ms(seed):
    core = follower(seed)
    now = core.deadline()
    core.deadline_passed(now)
    core.ready()
    for voter in (LEADER, OTHER):
        core.step(now, voter, VoteReply(Term(1), granted=False, pre=True))
    core.ready()
    assert core.role is Role.FOLLOWER
    first = core.deadline() - now
    assert 150_000 <= first <= 300_000
    core.deadline_passed(core.deadline())
    assert core.role is Role.PRE_CANDIDATE


@pytest.mark.parametrize(("heartbeat_ms", "election_ms"), [(10, 100), (150, 1_500), (1_000, 60_000)])
@pytest.mark.parametrize("seed", range(10))
def test_the_intervals_that_are_set_decide_when_an_election_starts_and_is_retried(seed, heartbeat_ms, election_ms):
    recovered = Recovered(MEMBERS, VoteState(Term(1), NO_REPLICA))
    core = Raft(ME, recovered, Seed(seed), TimeUs(0), options_of(heartbeat_ms, election_ms))
    heartbeat_at(core, 0)
    assert let_pass(core, election_ms * 1000) == []
    assert let_pass(core, (election_ms + heartbeat_ms) * 1000), "an election starts within one heartbeat's time"
    now = TimeUs((election_ms + heartbeat_ms) * 1000)
    for voter in (LEADER, OTHER):
        core.step(now, voter, VoteReply(Term(1), granted=False, pre=True))
    core.ready()
    assert heartbeat_ms * 1000 <= core.deadline() - now <= 2 * heartbeat_ms * 1000


def test_the_defaults_of_the_settings_are_the_constants():
    assert options_of(150, 1_500) == RaftOptions()
    settings = load_settings(None, [], {})
    assert options_of(settings.raft_heartbeat_interval_ms, settings.raft_election_timeout_ms) == RaftOptions()


def test_an_election_timeout_too_near_to_the_heartbeat_is_refused():
    with pytest.raises(ConfigError, match=r"4 times raft\.heartbeat\.interval\.ms"):
        load_settings(None, ["raft.heartbeat.interval.ms=100", "raft.election.timeout.ms=399"], {})


def test_a_vote_leaves_only_when_it_is_durable():
    core = follower(1)
    core.step(TimeUs(2_000_000), OTHER, VoteRequest(Term(2), MEMBERS_END, pre=False, transfer=True))
    ready = core.ready()
    assert ready.state == VoteState(Term(2), OTHER)
    assert ready.messages == ()
    core.state_persisted(TimeUs(2_000_100), ready.state)
    (reply,) = core.ready().messages
    assert reply.to == OTHER
    assert reply.message == VoteReply(Term(2), granted=True, pre=False)


MEMBERS_END = Recovered(MEMBERS).base

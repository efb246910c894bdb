"""Bugs planted in the Raft core, each of which the simulated world must find within a budget of events.

A bug replaces functions of the core while it is planted; production code knows nothing of it. Each says which knobs
make it reachable: a guard that hides it is off, a fault that it needs is on.
``python -m sim raft --planted`` shows the table.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from millstream.core.controller import recovery_plan
from millstream.core.raft import beginning, commit, election, following, forcing, leading, membership, quorum
from millstream.core.raft.leader_log import append_control
from millstream.core.raft.messages import AppendReply, Configuration
from millstream.core.raft.ready import Refusal
from millstream.core.raft.replica import Ballot
from millstream.core.raft.term_log import TermLog
from sim.engine import histories
from sim.engine.planting import Hunt, PlantedBug
from sim.raft.history import play
from sim.raft.knobs import draw_knobs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from millstream.core.controller.recovery_plan import GroupFacts, GroupPlan
    from millstream.core.raft.messages import Control, Heartbeat, LogPoint
    from millstream.core.raft.progress import Progress
    from millstream.core.raft.ready import Recovered, VoteState
    from millstream.core.raft.replica import Leading, Replica
    from millstream.model.replication import RaftPosition, ReplicaId
    from sim.raft.knobs import Knobs


def hunt(bug: PlantedBug, first_seed: int = 0) -> Hunt:
    """Run seeds with the bug planted until one finds it or its budget of events is used up."""
    return histories.hunt(bug, play, first_seed, draw=_harsh, spent=attrgetter("steps"))


def _harsh(seed: int) -> Knobs:
    return replace(draw_knobs(seed, harsh=True), assigned=False)


# The bugs


def _ack_before_sync(replica: Replica) -> None:
    if replica.leader not in (-1, replica.me):
        ends = replica.ends
        replica.send(replica.leader, AppendReply(replica.ballot.term, ends.verified, ends.verified, replica.round))


def _own_memory_counts(replica: Replica, voter: ReplicaId) -> int:
    return commit.received_of(replica, voter) if voter == replica.me else _durable_of(replica, voter)


_durable_of = commit.durable_of


def _count_answers(replica: Replica, voter: ReplicaId, *, granted: bool) -> None:
    """Each answer counts, a repeated one too."""
    voters = replica.log.configuration.voters
    counted = voter if voter not in replica.votes else next((v for v in voters if v not in replica.votes), voter)
    _count_vote(replica, counted, granted=granted)


_count_vote = election.count_vote


def _learners_count(configuration: Configuration, value_of: Callable[[ReplicaId], int]) -> int:
    everyone = (*configuration.voters, *configuration.learners)
    return quorum.reached(Configuration(everyone, configuration.outgoing), value_of)


def _one_step(replica: Replica, control: Control) -> None:
    if isinstance(control, Configuration):
        control = replace(control, outgoing=())
    append_control(replica, control)


def _without_outgoing(configuration: Configuration) -> Configuration:
    return replace(configuration, outgoing=())


def _new_voters_commit(configuration: Configuration, value_of: Callable[[ReplicaId], int]) -> int:
    return quorum.reached(_without_outgoing(configuration), value_of)


def _new_voters_elect(configuration: Configuration, votes: Mapping[ReplicaId, bool]) -> quorum.Outcome:
    return quorum.tally(_without_outgoing(configuration), votes)


def _only_outgoing(configuration: Configuration) -> Configuration:
    return replace(configuration, voters=configuration.outgoing or configuration.voters, outgoing=())


def _old_voters_commit(configuration: Configuration, value_of: Callable[[ReplicaId], int]) -> int:
    return quorum.reached(_only_outgoing(configuration), value_of)


def _old_voters_elect(configuration: Configuration, votes: Mapping[ReplicaId, bool]) -> quorum.Outcome:
    return quorum.tally(_only_outgoing(configuration), votes)


def _learners_elect(configuration: Configuration, votes: Mapping[ReplicaId, bool]) -> quorum.Outcome:
    return quorum.tally(replace(configuration, voters=(*configuration.voters, *configuration.learners)), votes)


def _is_member(configuration: Configuration, replica: ReplicaId) -> bool:
    return replica in quorum.members(configuration)


def _refused_when_ready(
    replica: Replica, voters: tuple[ReplicaId, ...], learners: tuple[ReplicaId, ...]
) -> Refusal | None:
    refusal = _change_refused(replica, voters, learners)
    return None if refusal is Refusal.NOT_READY else refusal


_change_refused = membership._change_refused


def _own_members_kept(log: TermLog, end: LogPoint, _configuration: Configuration) -> None:
    _reset(log, end, log.configuration)


_reset = TermLog.reset


def _commit_unmatched(replica: Replica, committed: RaftPosition, visible: RaftPosition) -> None:
    ends = replica.ends
    ends.committed = max(ends.committed, min(committed, replica.log.end))
    ends.visible = max(ends.visible, ends.committed, min(visible, replica.log.end))


def _unclipped_heartbeat(replica: Replica, leader: Leading, progress: Progress) -> Heartbeat:
    return replace(
        _heartbeat(replica, leader, progress), committed=replica.ends.committed, visible=replica.ends.visible
    )


_heartbeat = leading.heartbeat_for


def _everybody_answered(_replica: Replica, leader: Leading, _voter: ReplicaId) -> int:
    return leader.round


def _always(*_arguments: object, **_more: object) -> bool:
    return True


def _never(*_arguments: object, **_more: object) -> bool:
    return False


def _oldest_log(known: Sequence[tuple[int, GroupFacts]], lost: Collection[int]) -> GroupPlan | None:
    """The survivor with the oldest log continues with a group."""
    turned = [(node, replace(one, last_term=-one.last_term, end_position=-one.end_position)) for node, one in known]
    return _plan(turned, lost)


_plan = recovery_plan._plan


def _alone_in_this_term(replica: Replica) -> None:
    """The replica leads alone in the term that it is in, in which another one may have led."""
    term = replica.ballot.term
    _lead_alone(replica)
    replica.ballot.term = term


_lead_alone = forcing.lead_alone


def _uncast(replica: Replica, vote: VoteState) -> None:
    """The creation of the group has cast the vote of its first leader only."""
    if vote.voted_for == replica.me:
        _cast(replica, vote)


_cast = beginning.cast


def _begins_again(recovered: Recovered) -> bool:
    """A replica with an empty log counts as made just now, in spite of its disk."""
    return not recovered.runs and recovered.damaged_until is None


def _all_begin(replica: Replica) -> bool:
    """Every new replica leads the first term, whomever the creation has named."""
    return replica.leader < 0 and replica.log.end == 0 and election.may_stand(replica)


def _begins_wiped(replica: Replica, recovered: Recovered) -> None:
    """A replica that has lost its disk counts as made just now."""
    if recovered.cast is not None and not recovered.runs:
        replica.rejoining = replica.patience.damaged_until = None
        beginning.cast(replica, recovered.cast)
        replica.patience.begins_in = recovered.cast.term


# What makes them reachable


def _any(knobs: Knobs) -> Knobs:
    return replace(knobs, nodes=max(knobs.nodes, 3), crashes=True, write_caching=False)


def _plain(knobs: Knobs) -> Knobs:
    """No pre-vote, no check of the quorum, no priorities; one record, one unit, many crashes and cuts."""
    options = replace(knobs.options, pre_vote=False, check_quorum=False, priority=False)
    return replace(_any(knobs), options=options, batch_records=1, send_units=1, cuts=True, fold_units=0)


def _repeating(knobs: Knobs) -> Knobs:
    return replace(_plain(knobs), nodes=5, duplicate=0.5, loss=0.1)


def _stalling(knobs: Knobs) -> Knobs:
    return replace(_plain(knobs), stalls=True, fault_every_us=knobs.fault_every_us // 4)


def _changing(knobs: Knobs) -> Knobs:
    return replace(_any(knobs), nodes=3, spares=2, membership=True)


def _changing_plainly(knobs: Knobs) -> Knobs:
    """Leaders that fall with a change that few have."""
    return replace(_plain(_changing(knobs)), transfers=True)


def _folding(knobs: Knobs) -> Knobs:
    return replace(_changing_plainly(knobs), fold_units=1)


def _cut_off(knobs: Knobs) -> Knobs:
    return replace(
        _plain(knobs), cuts=True, pauses=False, crashes=False, stalls=False, transfers=False, membership=False, loss=0
    )


def _assigned(knobs: Knobs) -> Knobs:
    """First leaders are assigned, and crash before their disks have much."""
    timeout_us = knobs.options.election_timeout_us
    return replace(
        _plain(knobs),
        nodes=3,
        spares=0,
        assigned=True,
        membership=False,
        crashes=True,
        sync_us=timeout_us // 2,
        fault_every_us=timeout_us // 2,
    )


def _assigned_in_0(knobs: Knobs) -> Knobs:
    return replace(_assigned(knobs), first_term=0)


def _assigned_in_1(knobs: Knobs) -> Knobs:
    return replace(_assigned(knobs), first_term=1)


def _assigned_and_wiped(knobs: Knobs) -> Knobs:
    return replace(_assigned(knobs), damage=True, recoveries=False)


def _wiped_in_0(knobs: Knobs) -> Knobs:
    return replace(_assigned_and_wiped(knobs), first_term=0)


def _wiped_in_1(knobs: Knobs) -> Knobs:
    return replace(_assigned_and_wiped(knobs), first_term=1)


def _recovering(knobs: Knobs) -> Knobs:
    """Majorities are lost."""
    return replace(_plain(knobs), nodes=5, recoveries=True)


PLANTED = (
    PlantedBug("follower acknowledges before its sync", ((following, "reply", _ack_before_sync),), 200_000, _any),
    PlantedBug("leader counts itself before its sync", ((commit, "durable_of", _own_memory_counts),), 200_000, _any),
    PlantedBug("vote sent before it is durable", ((Ballot, "is_durable", _always),), 10_000, _any),
    PlantedBug("answers counted instead of voters", ((election, "count_vote", _count_answers),), 400_000, _repeating),
    PlantedBug("a second vote in one term", ((election, "can_vote", _always),), 200_000, _plain),
    PlantedBug("an older log gets votes", ((election, "is_up_to_date", _always),), 200_000, _plain),
    PlantedBug("older terms committed by counting (figure 8)", ((commit, "may_count", _always),), 200_000, _plain),
    PlantedBug(
        "completion believed after a truncation", ((following, "proves_durable", _always),), 8_000_000, _stalling
    ),
    PlantedBug(
        "commit beyond what matched",
        ((following, "learn_ends", _commit_unmatched), (leading, "heartbeat_for", _unclipped_heartbeat)),
        400_000,
        _plain,
    ),
    PlantedBug("read served without a round", ((leading, "round_of", _everybody_answered),), 400_000, _cut_off),
    PlantedBug("learners counted", ((commit, "reached", _learners_count),), 400_000, _changing),
    PlantedBug("members changed in one step", ((membership, "append_control", _one_step),), 200_000, _changing),
    PlantedBug(
        "a second change before the first is done", ((membership, "change_in_flight", _never),), 2_000_000, _changing
    ),
    PlantedBug(
        "members changed before the term start",
        ((membership, "_change_refused", _refused_when_ready),),
        400_000,
        _changing,
    ),
    PlantedBug("outgoing voters not counted", ((commit, "reached", _new_voters_commit),), 400_000, _changing),
    PlantedBug("incoming voters not counted", ((commit, "reached", _old_voters_commit),), 400_000, _changing),
    PlantedBug("incoming voters not asked", ((election, "tally", _old_voters_elect),), 600_000, _changing_plainly),
    PlantedBug("outgoing voters not asked", ((election, "tally", _new_voters_elect),), 400_000, _changing_plainly),
    PlantedBug(
        "learners elect",
        ((election, "tally", _learners_elect), (election, "is_voter", _is_member)),
        400_000,
        _changing_plainly,
    ),
    PlantedBug("the oldest survivor leads alone", ((recovery_plan, "_plan", _oldest_log),), 400_000, _recovering),
    PlantedBug(
        "leads alone in the term of another", ((forcing, "lead_alone", _alone_in_this_term),), 400_000, _recovering
    ),
    PlantedBug("a vote of an assigned term is given again", ((beginning, "cast", _uncast),), 200_000, _assigned_in_1),
    PlantedBug("two leaders in term 0", ((beginning, "leads_first", _all_begin),), 200_000, _assigned_in_0),
    PlantedBug(
        "an assigned leader that crashed begins again",
        ((beginning, "may_begin", _begins_again),),
        400_000,
        _assigned_in_1,
    ),
    PlantedBug(
        "an assigned leader of term 0 that crashed begins again",
        ((beginning, "may_begin", _begins_again),),
        400_000,
        _assigned_in_0,
    ),
    PlantedBug(
        "an assigned leader that lost its disk begins again",
        ((beginning, "recover", _begins_wiped),),
        400_000,
        _wiped_in_1,
    ),
    PlantedBug(
        "an assigned leader of term 0 that lost its disk begins again",
        ((beginning, "recover", _begins_wiped),),
        400_000,
        _wiped_in_0,
    ),
    PlantedBug(
        "installed replica keeps its own members", ((TermLog, "reset", _own_members_kept),), 4_000_000, _folding
    ),
)
"""The slow one, a completion after a truncation, needs a sync that outlives two elections."""

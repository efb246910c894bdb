"""The outline of a log agrees with a list of terms, entry by entry."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.raft.messages import Configuration, ControlEntry, LogPoint, TermRun
from millstream.core.raft.ready import Recovered
from millstream.core.raft.term_log import TermLog
from millstream.model.replication import RaftPosition, ReplicaId, Term

MEMBERS = Configuration(voters=(ReplicaId(1),))
TERMS = st.lists(st.integers(1, 6), max_size=30).map(sorted)


def outline(terms):
    log = TermLog(Recovered(MEMBERS))
    for term in terms:
        log.extend(1, Term(term))
    return log


def term_of(terms, position):
    return terms[position - 1] if position else 0


@given(TERMS)
def test_a_position_has_the_term_of_the_entry_that_ends_there(terms):
    log = outline(terms)
    assert [log.term_at(RaftPosition(p)) for p in range(len(terms) + 1)] == [0, *terms]
    assert log.term_at(RaftPosition(len(terms) + 1)) is None


@given(TERMS, st.data())
def test_a_cut_and_a_fold_leave_the_rest_as_it_was(terms, data):
    log = outline(terms)
    end = data.draw(st.integers(0, len(terms)))
    log.truncate(RaftPosition(end))
    base = data.draw(st.integers(0, end))
    log.fold(RaftPosition(base))
    assert log.last == LogPoint(RaftPosition(end), Term(term_of(terms, end)))
    for position in range(len(terms) + 2):
        expected = term_of(terms, position) if base <= position <= end else None
        assert log.term_at(RaftPosition(position)) == expected


@given(TERMS, st.data())
def test_runs_between_two_points_name_each_entry_once(terms, data):
    log = outline(terms)
    start = data.draw(st.integers(0, len(terms)))
    end = data.draw(st.integers(start, len(terms)))
    position, named = start, []
    for run in log.runs_between(RaftPosition(start), RaftPosition(end)):
        named += [run.term] * (run.end_position - position)
        position = run.end_position
    assert named == terms[start:end]


@given(TERMS, TERMS, st.data())
def test_agreement_ends_at_the_first_entry_that_differs_or_is_new(mine, theirs, data):
    start = data.draw(st.integers(0, min(len(mine), len(theirs))))
    log = outline(mine)
    runs = outline(theirs).runs_between(RaftPosition(start), RaftPosition(len(theirs)))
    expected = start
    while expected < min(len(mine), len(theirs)) and mine[expected] == theirs[expected]:
        expected += 1
    assert log.agrees_until(RaftPosition(start), runs) == expected


@given(TERMS, st.integers(0, 30), st.integers(0, 7))
def test_a_hint_is_the_newest_point_that_may_match(terms, position, term):
    found = outline(terms).newest_at_most(RaftPosition(position), Term(term))
    candidates = [p for p in range(min(position, len(terms)) + 1) if term_of(terms, p) <= term]
    assert found == LogPoint(RaftPosition(max(candidates)), Term(term_of(terms, max(candidates))))


def test_members_follow_the_newest_configuration_and_come_back_with_a_cut():
    log = outline([1, 1])
    later = Configuration(voters=(ReplicaId(1), ReplicaId(2)))
    entry = ControlEntry(RaftPosition(2), Term(1), later)
    log.append((TermRun(RaftPosition(3), Term(1)),), (entry,))
    assert log.configuration == later
    assert log.configuration_at(RaftPosition(2)) == MEMBERS
    assert log.controls_between(RaftPosition(0), RaftPosition(3)) == (entry,)
    log.truncate(RaftPosition(2))
    assert log.configuration == MEMBERS
    assert log.controls == []

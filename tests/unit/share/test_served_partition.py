"""A share partition over its log: what it serves of an old state, of an old session, and without a coordinator."""

import pytest
from share_world import World, image

from millstream.coordinator.share_states import READ, WRITE
from millstream.core.share.partition import Acknowledgement
from millstream.model.error_code import ErrorCode
from millstream.share.served import AGAIN_US, PATIENCE_US, ServedPartition, Taken

ACCEPT = 1


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def spans(taken):
    return [(one.first, one.last, one.count) for each in taken for one in each.acquired]


def test_a_new_session_takes_nothing_of_a_state_that_was_made_again(world):
    world.load()
    world.one.end_session(1)
    assert world.fetch(2, "n") == [Taken(ErrorCode.NONE)]
    ask = world.answer(image=image(created_ms=8))
    assert (ask.kind, ask.leader_epoch) == (READ, -1)
    assert world.one.closed and world.forgotten == [world.one] and (0, 2) in world.woken


def test_a_new_session_waits_until_its_state_is_proved(world):
    world.load()
    world.one.end_session(1)
    assert spans(world.fetch(2, "n")) == []
    world.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert spans(world.fetch(2, "n")) == [] and not world.asks
    world.reactor.run_until(world.reactor.now + AGAIN_US)
    assert world.answer().kind == WRITE, "what was given back"
    world.answer(image=image())
    assert spans(world.fetch(2, "n")) == [(0, 9, 2)]


def test_a_session_that_came_while_the_stored_state_was_read_waits_for_another_look(world):
    world.fetch(1)
    world.fetch(2, "n")
    world.answer(image=image())
    assert spans(world.fetch(2, "n")) == []
    assert spans(world.fetch(1)) == [(0, 9, 1)]
    world.answer(image=image())
    assert not world.asks


def test_a_deleted_state_is_learnt_by_the_next_fetch(world):
    world.load()
    world.fetch(2, "n")
    world.answer(ErrorCode.INVALID_REQUEST)
    assert world.one.closed
    world.one = ServedPartition(world.one.key, world.partition, world)
    world.forgotten.clear()
    world.fetch(2, "n")
    world.answer(ErrorCode.INVALID_REQUEST)
    assert not world.forgotten
    assert world.fetch(2, "n") == [Taken(ErrorCode.UNKNOWN_SERVER_ERROR)]
    assert world.forgotten == [world.one]


def test_a_cold_read_gives_nothing_to_a_session_that_has_ended_or_was_replaced(world):
    world.is_cold = True
    first = world.load()
    second = world.fetch(2, "n")
    world.answer(image=image())
    second = world.fetch(2, "n")
    world.one.end_session(1)
    world.one.replace_session("n", 5)
    for done in world.cold:
        done(world.result())
    assert first == [Taken(ErrorCode.NONE)] and second == [Taken(ErrorCode.NONE)]
    assert not world.lent, "what was read is released"
    assert world.one.core.next_offset() == 0, "and nothing is held"


def acknowledge(world):
    answers = []
    world.one.acknowledge("m", [Acknowledgement(0, 9, [ACCEPT])], answers.append)
    world.reactor.run_until(world.reactor.now)
    return answers


def test_an_acknowledgement_outlives_a_coordinator_that_is_away(world):
    world.load()
    answers = acknowledge(world)
    first = world.answer(ErrorCode.NOT_COORDINATOR)
    assert (first.kind, first.leader_epoch, first.created_ms) == (WRITE, 3, 7)
    assert answers == []
    world.reactor.run_until(world.reactor.now + AGAIN_US)
    assert world.answer() == first, "the same report"
    assert answers == [ErrorCode.NONE]


def test_an_acknowledgement_fails_when_no_coordinator_comes(world):
    world.load()
    answers = acknowledge(world)
    world.reactor.run_until(world.reactor.now + PATIENCE_US)
    world.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH])
def test_a_fenced_write_ends_it(world, error):
    world.load()
    answers = acknowledge(world)
    world.answer(error)
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER] and world.forgotten == [world.one]


def test_one_that_lost_its_last_session_while_it_loaded_goes(world):
    world.fetch(1)
    world.one.end_session(1)
    world.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    world.reactor.run_until(world.reactor.now + AGAIN_US)
    assert world.forgotten == [world.one] and not world.asks


def test_files_are_read_for_a_fetch_that_may_wait_alone(world):
    world.is_cold = True
    assert world.load() == []
    assert len(world.cold) == 1
    assert world.fetch(1, may_wait=False) == [Taken(ErrorCode.NONE)]
    assert len(world.cold) == 1
    world.is_cold = False
    assert spans(world.fetch(1, may_wait=False)) == [(0, 9, 1)]

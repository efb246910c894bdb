"""The disk of a dead broker is taken over: it goes on as the same replica, and its earlier life is fenced for ever."""

import pytest
from controller_bench import Bench, disk

from millstream.core.controller.profile import PeerAddress
from millstream.core.controller.requests import CreateTopic, DeclareLost, TakeOver
from millstream.core.controller.state import decode_state, encode_state
from millstream.model.error_code import ErrorCode

REASON = "its machine burned"
PEER = PeerAddress("elsewhere", 7070)


def three(*fenced):
    bench = Bench(brokers=(1, 2, 3), level=2)
    bench.create(CreateTopic("t", 2, 1))
    for node in fenced:
        bench.fence(node)
    return bench


def test_the_disk_is_the_same_replica_under_another_incarnation():
    bench = three(2)
    before = bench.state.registry.brokers[2]
    assert not bench.do(TakeOver(2, disk(2), disk(22), PEER, REASON))[0].error
    after = bench.state.registry.brokers[2]
    assert after.replica == before.replica and after.incarnation == disk(22) and after.epoch > before.epoch
    assert after.fenced and not after.is_lost and after.profile.peer == PEER
    assert not bench.register(2, incarnation=disk(22)).error
    assert decode_state(encode_state(bench.state)) == bench.state


def test_the_earlier_life_is_refused_before_and_after_the_disk_is_retired():
    bench = three(2)
    bench.do(TakeOver(2, disk(2), disk(22), PEER, REASON))
    for _ in range(2):
        refused = bench.register(2)
        assert refused.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert "what it holds is outdated" in refused.message
        bench.do(DeclareLost((2,), REASON))
    again = bench.decide(TakeOver(2, disk(22), disk(23), PEER, REASON))
    assert not again.commands and "nothing of it is needed" in again.results[0].message


def test_the_same_request_again_changes_nothing_and_another_one_goes_on():
    bench = three(2)
    bench.do(TakeOver(2, disk(2), disk(22), PEER, REASON))
    again = bench.decide(TakeOver(2, disk(2), disk(22), PEER, REASON))
    assert not again.results[0].error and not again.commands
    other = PeerAddress("third", 7070)
    assert not bench.do(TakeOver(2, disk(2), disk(22), other, REASON))[0].error
    assert bench.state.registry.brokers[2].profile.peer == other
    assert not bench.do(TakeOver(2, disk(22), disk(23), PEER, REASON))[0].error
    assert bench.state.registry.retired == {disk(2): 2, disk(22): 2}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (TakeOver(3, disk(3), disk(33), PEER), "broker 3 is alive"),
        (TakeOver(1, disk(1), disk(33), PEER), "broker 1 is alive"),
        (TakeOver(9, disk(9), disk(33), PEER), "broker 9 is not registered"),
        (TakeOver(2, disk(7), disk(33), PEER), "is registered with another data directory"),
        (TakeOver(2, disk(2), disk(3), PEER), "is that of another data directory"),
        (TakeOver(2, disk(2), b"short", PEER), "an incarnation has 16 bytes"),
        (TakeOver(2, disk(2), disk(22), PeerAddress("", 0)), "broker 2 "),
    ],
)
def test_what_must_not_be_taken_over_is_refused_in_words(request_, words):
    bench = three(2)
    decision = bench.decide(request_)
    assert words in decision.results[0].message and not decision.commands

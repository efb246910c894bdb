"""Brokers join under an id and a disk, fall silent, come back, are replaced; what contradicts is refused in words."""

import msgspec
import pytest
from controller_bench import Bench, disk, profile_of

from millstream.config.settings import Settings
from millstream.core.controller.brokers import internal_factor
from millstream.core.controller.commands import (
    FEATURE_LEVEL,
    BrokerFenced,
    BrokerRegistered,
    BrokerReplaced,
    BrokerUnfenced,
    FeatureLevelRaised,
    ReplicaChange,
    ReplicasChanged,
)
from millstream.core.controller.liveness import ALIVE_TIMEOUT_US, Liveness
from millstream.core.controller.profile import ListenerAddress, PeerAddress
from millstream.core.controller.quorum import Members, plan_members
from millstream.core.controller.requests import CreateTopic, FenceBroker, UnfenceBroker
from millstream.core.controller.state import ControllerState, decode_state, encode_state, state_hash
from millstream.errors import Corruption
from millstream.model.error_code import ErrorCode
from millstream.model.replication import replica_id

THREE = (1, 2, 3)


def refusal(result):
    return result.error.name, result.message


def test_the_first_broker_raises_the_level_and_is_alive_at_once(bench):
    decision = bench.decide_registration(1)
    assert decision.commands == (
        FeatureLevelRaised(1),
        BrokerRegistered(1, disk(1), profile_of(1)),
        BrokerUnfenced(1, 3),
    )
    assert (decision.results[0].broker_epoch, decision.results[0].feature_level) == (3, 1)


def test_a_further_broker_is_fenced_until_it_is_unfenced(bench):
    bench.join(1)
    epoch = bench.register(2).broker_epoch
    brokers = bench.state.registry
    assert (brokers.nodes(), brokers.alive()) == ((1, 2), (1,))
    bench.do(UnfenceBroker(2, epoch))
    assert brokers is bench.state.registry
    assert brokers.alive() == (1, 2)


def test_a_restart_with_the_same_disk_begins_a_new_epoch_and_takes_over_the_new_profile():
    bench = Bench(brokers=THREE)
    before = bench.state.registry.brokers[2]
    result = bench.register(2, rack="r9", release="0.2.0")
    after = bench.state.registry.brokers[2]
    assert before.epoch < after.epoch == result.broker_epoch == bench.state.revision
    assert (after.profile.rack, after.profile.release, after.fenced) == ("r9", "0.2.0", True)
    assert bench.do(UnfenceBroker(2, before.epoch))[0].error == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("node", "changes", "code", "words"),
    [
        (2, {"incarnation": disk(9)}, "DUPLICATE_BROKER_REGISTRATION", "registered with another data directory"),
        (2, {"incarnation": disk(9), "replace": True}, "DUPLICATE_BROKER_REGISTRATION", "is alive with its other"),
        (4, {"incarnation": disk(3)}, "DUPLICATE_BROKER_REGISTRATION", "belongs to broker 3, not 4: start it with --n"),
        (4, {"cluster_id": "other"}, "INCONSISTENT_CLUSTER_ID", "belongs to cluster other, this is cluster MkU3"),
        (4, {"feature_level": 0}, "UNSUPPORTED_VERSION", "knows feature level 0; this cluster needs 1"),
        (-1, {}, "INVALID_REQUEST", "a node id is a number from 0 to 2147483647"),
        (4, {"incarnation": b"short"}, "INVALID_REQUEST", "an incarnation has 16 bytes, not 5"),
        (4, {"listeners": ()}, "INVALID_REQUEST", "has 0 listeners, expected 1 to 64"),
        (4, {"listeners": (ListenerAddress("A", "h", 1),) * 2}, "INVALID_REQUEST", "two listeners the same name"),
        (4, {"peer": PeerAddress("h", 0)}, "INVALID_REQUEST", "names a port outside 1 to 65535"),
        (4, {"peer": PeerAddress("", 1)}, "INVALID_REQUEST", "an address without a host"),
        (4, {"shards": 0}, "INVALID_REQUEST", "has 0 shards, expected 1 to 256"),
        (4, {"rack": "r" * 256}, "INVALID_REQUEST", "a name of more than 255 characters"),
    ],
)
def test_a_broker_that_must_not_join_is_refused_with_the_remedy(node, changes, code, words):
    bench = Bench(brokers=THREE)
    before = state_hash(bench.state)
    result = bench.register(node, **{"incarnation": disk(abs(node))} | changes)
    assert result.error.name == code
    assert words in result.message
    assert state_hash(bench.state) == before


def test_only_the_broker_that_created_the_cluster_registers_first(bench):
    assert refusal(bench.register(2)) == (
        "BROKER_NOT_AVAILABLE",
        "broker 1, which created the cluster, has to register before broker 2: try again",
    )


def test_a_lost_disk_is_replaced_once_the_broker_is_fenced_and_never_comes_back():
    bench = Bench(brokers=THREE, level=2)
    bench.fence(2)
    result = bench.register(2, incarnation=disk(9), replace=True, replacement=77)
    assert not result.error
    broker = bench.state.registry.brokers[2]
    assert (broker.incarnation, broker.fenced, broker.epoch) == (disk(9), True, result.broker_epoch)
    assert (broker.replacement, broker.replica) == (77, replica_id(2, 77))
    for changes in ({"incarnation": disk(2)}, {"incarnation": disk(2), "replace": True}):
        result = bench.register(2, **changes)
        assert result.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert "was replaced or declared lost" in result.message
    assert not bench.register(2, incarnation=disk(9)).error


def test_replace_with_the_disk_that_is_registered_is_an_ordinary_restart():
    bench = Bench(brokers=THREE)
    assert not bench.register(2, replace=True).error
    assert bench.state.registry.brokers[2].incarnation == disk(2)


def test_fences_speak_of_one_life_of_a_broker():
    bench = Bench(brokers=THREE)
    epoch = bench.state.registry.brokers[2].epoch
    assert bench.do(FenceBroker(2, epoch - 1))[0].error == ErrorCode.STALE_BROKER_EPOCH
    assert bench.do(FenceBroker(7, 1))[0].error == ErrorCode.BROKER_ID_NOT_REGISTERED
    own = bench.state.registry.brokers[1].epoch
    assert refusal(bench.do(FenceBroker(1, own))[0]) == (
        "INVALID_REQUEST",
        "broker 1 is the active controller, so it is alive",
    )
    bench.fence(2)
    assert bench.decide(FenceBroker(2, epoch)).commands == ()
    bench.do(UnfenceBroker(2, epoch))
    assert bench.decide(UnfenceBroker(2, epoch)).commands == ()


@pytest.mark.parametrize(
    "command",
    [
        FeatureLevelRaised(1),
        FeatureLevelRaised(FEATURE_LEVEL + 1),
        BrokerRegistered(2, disk(9), profile_of(2)),
        BrokerRegistered(4, disk(2), profile_of(4)),
        BrokerRegistered(4, b"short", profile_of(4)),
        BrokerRegistered(4, disk(4), msgspec.structs.replace(profile_of(4), feature_level=0)),
        BrokerReplaced(2, disk(2), disk(9), profile_of(2)),
        BrokerReplaced(3, disk(2), disk(9), profile_of(3)),
        BrokerReplaced(3, disk(3), disk(1), profile_of(3)),
        BrokerReplaced(4, disk(4), disk(9), profile_of(4)),
        BrokerFenced(3, 0),
        BrokerFenced(9, 0),
        BrokerUnfenced(2, 5),
        ReplicasChanged(bytes(16), (ReplicaChange(0, (1,)),)),
        ReplicasChanged((1).to_bytes(16, "big"), ()),
        ReplicasChanged((1).to_bytes(16, "big"), (ReplicaChange(1, (1,)),)),
        ReplicasChanged((1).to_bytes(16, "big"), (ReplicaChange(0, ()),)),
        ReplicasChanged((1).to_bytes(16, "big"), (ReplicaChange(0, (1, 1)),)),
        ReplicasChanged((1).to_bytes(16, "big"), (ReplicaChange(0, (1, 9)),)),
    ],
)
def test_a_command_that_contradicts_the_registry_is_corruption_and_changes_nothing(command):
    bench = Bench(brokers=THREE)
    bench.create(CreateTopic("t", 1, 1))
    bench.fence(3)
    before = encode_state(bench.state)
    with pytest.raises(Corruption):
        bench.state.apply(command)
    assert encode_state(bench.state) == before


def test_a_command_above_the_cluster_s_feature_level_is_corruption(bench):
    with pytest.raises(Corruption, match="a command of feature level 1 in a cluster of level 0"):
        bench.state.apply(BrokerRegistered(1, disk(1), profile_of(1)))


def test_a_level_that_a_registered_broker_does_not_know_cannot_be_raised(bench):
    bench.state.apply(FeatureLevelRaised(1))
    bench.state.apply(BrokerRegistered(1, disk(1), profile_of(1)))
    bench.state.feature_level = 0
    bench.state.registry.brokers[1] = msgspec.structs.replace(
        bench.state.registry.brokers[1], profile=msgspec.structs.replace(profile_of(1), feature_level=0)
    )
    with pytest.raises(Corruption, match="feature level 1 is not known to broker 1"):
        bench.state.apply(FeatureLevelRaised(1))


def test_the_state_with_brokers_survives_its_snapshot_and_hashes_alike():
    bench = Bench(brokers=THREE, level=2)
    bench.fence(2)
    bench.register(2, incarnation=disk(9), replace=True, replacement=5)
    bench.create(CreateTopic("t", 3, 3))
    again = decode_state(encode_state(bench.state))
    assert again.registry.brokers == bench.state.registry.brokers
    assert again.registry.retired == {disk(2): 2}
    assert again.feature_level == 2
    assert (again.load.replicas, again.load.leaders) == (bench.state.load.replicas, bench.state.load.leaders)
    assert state_hash(again) == state_hash(bench.state)
    again.apply(BrokerFenced(3, again.registry.brokers[3].epoch))
    assert state_hash(again) != state_hash(bench.state)


def test_copies_do_not_share_what_changes():
    bench = Bench(brokers=THREE)
    copy = bench.state.copy()
    copy.apply(BrokerFenced(2, copy.registry.brokers[2].epoch))
    bench.create(CreateTopic("t", 3, 1))
    assert bench.state.registry.alive() == THREE
    assert copy.load.replicas == {}


def test_internal_topics_get_three_replicas_when_the_third_broker_is_alive():
    bench = Bench(level=2)
    bench.join(1)
    bench.create(CreateTopic("__consumer_offsets", 4), CreateTopic("mine", 4))
    bench.join(2)
    topic = bench.state.topics["__consumer_offsets"]
    assert [p.replicas for p in topic.partitions] == [(1,)] * 4, "with two brokers both would have to be up"
    epoch = bench.register(3).broker_epoch
    bench.do(UnfenceBroker(3, epoch))
    topic = bench.state.topics["__consumer_offsets"]
    assert [(p.replicas[0], sorted(p.replicas), p.leader) for p in topic.partitions] == [(1, [1, 2, 3], 1)] * 4
    assert {move.before for move in bench.state.moves.values()} == {(1,)}
    assert [p.replicas for p in bench.state.topics["mine"].partitions] == [(1,)] * 4
    assert bench.state.load.replicas == {1: 8, 2: 4, 3: 4}
    bench.create(CreateTopic("__transaction_state", 2))
    assert [len(p.replicas) for p in bench.state.topics["__transaction_state"].partitions] == [3, 3]


@pytest.mark.parametrize(("alive", "factor"), [(1, 1), (2, 1), (3, 3), (4, 3), (9, 3)])
def test_the_factor_of_internal_topics_is_odd(alive, factor):
    bench = Bench(brokers=tuple(range(1, alive + 1)))
    assert internal_factor(bench.state, bench.rules, "__consumer_offsets") == factor


@pytest.mark.parametrize(
    ("alive", "wanted", "factor"), [(3, 1, 1), (3, 2, 2), (1, 2, 1), (2, 2, 2), (4, 5, 3), (5, 5, 5)]
)
def test_settings_say_how_many_replicas_internal_topics_get(alive, wanted, factor):
    bench = Bench(brokers=tuple(range(1, alive + 1)))
    settings = Settings(data_dir="d", offsets_topic_replication_factor=wanted)
    rules = msgspec.structs.replace(bench.rules, settings=settings)
    assert internal_factor(bench.state, rules, "__consumer_offsets") == factor
    assert internal_factor(bench.state, rules, "__transaction_state") == (3 if alive > 2 else 1)


def test_an_internal_topic_waits_until_enough_founders_are_registered():
    bench = Bench(brokers=(1, 2))
    bench.rules = msgspec.structs.replace(bench.rules, founders=3)
    (refused,) = bench.create(CreateTopic("__consumer_offsets", 4))
    assert refused.error is ErrorCode.INVALID_REPLICATION_FACTOR
    bench.register(3)
    bench.create(CreateTopic("__consumer_offsets", 4))
    assert [len(part.replicas) for part in bench.state.topics["__consumer_offsets"].partitions] == [3] * 4


def test_replicas_that_nobody_would_move_are_not_asked_for():
    bench = Bench(brokers=(1,))
    bench.create(CreateTopic("__consumer_offsets", 4))
    bench.join(2)
    bench.join(3)
    assert [part.replicas for part in bench.state.topics["__consumer_offsets"].partitions] == [(1,)] * 4


@pytest.mark.parametrize(
    ("brokers", "voting", "expected"),
    [
        ((1,), (), Members((1,), ())),
        ((1, 2), (1,), Members((1,), (2,))),
        ((1, 2, 3), (1,), Members((1, 2, 3), ())),
        ((1, 2, 3, 4), (2, 3, 4), Members((2, 3, 4), (1,))),
        (tuple(range(1, 11)), (1, 9, 10), Members((1, 2, 3, 4, 5, 9, 10), (6, 7, 8))),
        ((1, 2), (1, 2, 3), Members((1,), (2,))),
    ],
)
def test_group_0_has_an_odd_number_of_voters_and_keeps_those_it_has(brokers, voting, expected):
    assert plan_members(Bench(brokers=brokers).state, voting) == expected


def test_further_voters_of_group_0_are_alive_and_from_other_racks():
    bench = Bench()
    for node, rack in ((1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "c"), (6, "d")):
        bench.join(node, rack=rack)
    bench.fence(4)
    assert plan_members(bench.state, (1,)).voters == (1, 2, 3, 5, 6)
    bench.do(UnfenceBroker(4, bench.state.registry.brokers[4].epoch))
    assert plan_members(bench.state, (1,)).voters == (1, 2, 4, 5, 6)


def test_silence_fences_and_a_beat_that_has_caught_up_lifts_the_fence():
    bench = Bench(brokers=THREE)
    epoch = bench.register(3).broker_epoch
    state = bench.state
    at = 1_000_000
    liveness = Liveness(1, at)
    assert liveness.due(state, at) == []
    assert liveness.next_due_us(state) == at + ALIVE_TIMEOUT_US
    liveness.beat(state, 3, epoch, epoch - 1, at)
    assert liveness.due(state, at) == [], "it does not know its own registration yet"
    liveness.beat(state, 3, epoch - 1, epoch, at)
    liveness.beat(state, 8, 1, 99, at)
    assert liveness.due(state, at) == []
    liveness.beat(state, 3, epoch, epoch, at + 7)
    assert liveness.due(state, at + 7) == [UnfenceBroker(3, epoch)]
    bench.do(UnfenceBroker(3, epoch))
    late = at + ALIVE_TIMEOUT_US
    assert liveness.due(state, late - 1) == []
    assert liveness.due(state, late) == [FenceBroker(2, state.registry.brokers[2].epoch)]
    bench.fence(2)
    assert liveness.next_due_us(state) == late + 7
    assert liveness.due(state, late + 7) == [FenceBroker(3, epoch)]
    assert Liveness(1, 0).next_due_us(ControllerState()) is None


def test_beats_of_an_earlier_life_do_not_count_for_the_next():
    bench = Bench(brokers=THREE)
    state = bench.state
    liveness = Liveness(1, 0)
    liveness.beat(state, 2, state.registry.brokers[2].epoch, state.revision, 10)
    bench.register(2)
    assert liveness.due(state, 20) == []
    assert state.registry.brokers[2].fenced

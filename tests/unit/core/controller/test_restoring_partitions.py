"""Shared partitions of a dead broker are given to live ones, if the store has what it acknowledged."""

from collections import Counter

import pytest
from controller_bench import Bench, disk
from msgspec.structs import replace

from millstream.core.controller.commands import BrokerLogsInStore, ReplicasChanged
from millstream.core.controller.replicas import Origin
from millstream.core.controller.requests import (
    CreateTopic,
    NoteLogInStore,
    ReassignPartition,
    ReassignPartitions,
    RestorePartitions,
    SetBrokerMode,
)
from millstream.core.controller.restoring import AT_ONCE, restorable_partitions
from millstream.core.controller.state import decode_state, encode_state
from millstream.errors import Corruption
from millstream.model.error_code import ErrorCode

SHARED = {"storage.mode": "shared"}


def broker(bench, node):
    return bench.state.registry.brokers[node]


def note(bench, *nodes):
    """The brokers say that the store has what they acknowledged."""
    for node in nodes:
        assert not bench.do(NoteLogInStore(node, broker(bench, node).epoch))[0].error


def create(bench, name, *layout, **configs):
    topic = CreateTopic(name, assignments=tuple(enumerate(layout)), configs=tuple({**SHARED, **configs}.items()))
    (result,) = bench.create(topic)
    assert not result.error, result.message


def holders(bench, name):
    return [part.replicas for part in bench.state.topics[name].partitions]


def restore(bench, node=2, epoch=None):
    (result,) = bench.do(RestorePartitions(node, broker(bench, node).epoch if epoch is None else epoch))
    return result


@pytest.fixture
def bench():
    made = Bench(level=5, objects_url="file:///unused")
    for node in (1, 2, 3):
        made.join(node, log_in_store=True)
    note(made, 1, 2, 3)
    return made


def test_a_broker_counts_only_after_it_has_said_that_the_store_has_everything_and_until_it_starts_without(bench):
    assert broker(bench, 2).profile.log_in_store
    bench.join(4, log_in_store=True)
    assert not broker(bench, 4).profile.log_in_store, "its disk may have what no log in the store has"
    bench.register(2, log_in_store=True)
    assert broker(bench, 2).profile.log_in_store, "it was so before, and is so"
    bench.register(2)
    assert not broker(bench, 2).profile.log_in_store
    bench.register(2, log_in_store=True)
    assert not broker(bench, 2).profile.log_in_store
    note(bench, 2)
    bench.fence(3)
    assert not bench.register(3, incarnation=disk(33), replace=True, log_in_store=True).error
    assert broker(bench, 3).profile.log_in_store, "its disk is empty"
    assert decode_state(encode_state(bench.state)) == bench.state


def test_what_an_earlier_life_says_counts_for_nothing(bench):
    epoch = broker(bench, 2).epoch
    bench.register(2)
    (late,) = bench.do(NoteLogInStore(2, epoch))
    assert late.error == ErrorCode.STALE_BROKER_EPOCH and not broker(bench, 2).profile.log_in_store
    assert bench.do(NoteLogInStore(9, epoch))[0].error == ErrorCode.STALE_BROKER_EPOCH
    again = bench.decide(NoteLogInStore(1, broker(bench, 1).epoch))
    assert not again.results[0].error and not again.commands


def test_partitions_go_to_the_live_brokers_with_the_fewest_replicas(bench):
    create(bench, "t", *[(2,)] * 6, (1,), (3,))
    create(bench, "several", (1, 2, 3))
    create(bench, "busy", (1,), (1,))
    bench.fence(2)
    assert restorable_partitions(bench.state, bench.rules.settings) == 6
    origin = broker(bench, 2).replica
    assert restore(bench).partitions == 6
    given = holders(bench, "t")
    assert Counter(node for (node,) in given[:6]) == {3: 4, 1: 2}
    assert given[6:] == [(1,), (3,)] and holders(bench, "several") == [(1, 2, 3)]
    assert restorable_partitions(bench.state, bench.rules.settings) == 0
    first = bench.state.topics["t"].partitions[0]
    assert bench.state.origins[first.raft_group] == Origin((origin,), (2,))
    assert first.leader == given[0][0]
    assert decode_state(encode_state(bench.state)) == bench.state
    assert restore(bench).partitions == 0


def test_only_so_many_partitions_go_at_once(bench):
    create(bench, "wide", *[(2,)] * (AT_ONCE + 7))
    bench.fence(2)
    assert [restore(bench).partitions for _ in range(3)] == [AT_ONCE, 7, 0]


def test_partitions_of_other_topics_and_those_that_move_stay(bench):
    bench.create(CreateTopic("plain", assignments=((0, (2,)),)))
    create(bench, "moves", (2,), (1,))
    moved = bench.do(
        ReassignPartitions((ReassignPartition("moves", 0, (3,)), ReassignPartition("moves", 1, (2,))), True)
    )
    assert not any(result.error for result in moved)
    bench.fence(2)
    assert restore(bench).partitions == 0
    assert holders(bench, "plain") == [(2,)]


@pytest.mark.parametrize(
    ("prepare", "code", "words"),
    [
        (lambda bench: None, "STALE_BROKER_EPOCH", "broker 2 has come back"),
        (lambda bench: bench.register(2), "INVALID_REQUEST", "may alone have what was not uploaded"),
        (
            lambda bench: [bench.fence(2), bench.fence(3), bench.register(1)],
            "INVALID_REPLICATION_FACTOR",
            "no live broker",
        ),
        (
            lambda bench: [bench.fence(2), *(bench.do(SetBrokerMode(node, "drained")) for node in (1, 3))],
            "INVALID_REPLICATION_FACTOR",
            "no live broker",
        ),
    ],
)
def test_what_must_not_be_restored_is_refused_in_words(bench, prepare, code, words):
    create(bench, "t", (2,))
    prepare(bench)
    before = encode_state(bench.state)
    result = restore(bench)
    assert (result.error.name, words in result.message) == (code, True), result
    assert encode_state(bench.state) == before


def test_a_broker_that_registered_after_the_seal_keeps_its_partitions(bench):
    create(bench, "t", (2,))
    bench.fence(2)
    epoch = broker(bench, 2).epoch
    bench.register(2, log_in_store=True)  # it is fenced still, and may acknowledge soon
    assert restore(bench, epoch=epoch).error == ErrorCode.STALE_BROKER_EPOCH
    assert holders(bench, "t") == [(2,)]
    assert restore(bench, node=9, epoch=1).error == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_broker_gets_a_partition_back_only_when_it_has_heard_that_it_left(bench):
    create(bench, "busy", (1,))
    create(bench, "t", (2,))
    bench.fence(2)
    restore(bench)
    assert holders(bench, "t") == [(3,)]
    bench.join(2, log_in_store=True)
    bench.do(SetBrokerMode(1, "drained"))
    bench.fence(3)
    heard = bench.rules
    bench.rules = replace(heard, is_behind=lambda node: node == 2)
    assert restore(bench, 3).partitions == 0
    bench.rules = heard
    assert restore(bench, 3).partitions == 1 and holders(bench, "t") == [(2,)]


def test_nothing_is_noted_or_restored_before_every_broker_knows_it():
    bench = Bench(level=4, objects_url="file:///unused")
    for node in (1, 2, 3):
        bench.join(node, log_in_store=True)
    for request in (NoteLogInStore(2, broker(bench, 2).epoch),):
        decision = bench.decide(request)
        assert decision.results[0].error == ErrorCode.UNSUPPORTED_VERSION and not decision.commands
        assert "the cluster has feature level 4, and others restore partitions from level 5 on" in (
            decision.results[0].message
        )
    for command in (BrokerLogsInStore(2, broker(bench, 2).epoch), ReplicasChanged(bytes(16), (), version=1)):
        with pytest.raises(Corruption, match="feature level"):
            bench.state.apply(command)

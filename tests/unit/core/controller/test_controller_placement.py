"""Where replicas go: distinct brokers, racks first, then load per core; and who of them should lead."""

from collections import Counter

import pytest
from controller_bench import Bench
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.controller.commands import BrokerFenced
from millstream.core.controller.leaders import LeaderTransfer, LeaderView, plan_transfers
from millstream.core.controller.load import Load
from millstream.core.controller.placement import Candidate, Placer
from millstream.core.controller.requests import (
    AddPartitions,
    CreatePartitions,
    CreateTopic,
    DeleteTopics,
    TopicReference,
)
from millstream.errors import Rejected


def replicas(bench, name="t"):
    return [partition.replicas for partition in bench.state.topics[name].partitions]


def cluster(racks, **changes):
    bench = Bench()
    for node, rack in enumerate(racks, 1):
        bench.join(node, rack=rack, **changes)
    return bench


def test_replicas_are_in_different_racks():
    bench = cluster(["a", "a", "b", "b", "c", "c"])
    bench.create(CreateTopic("t", 30, 3))
    rack = dict(zip(range(1, 7), "aabbcc", strict=True))
    assert all({rack[node] for node in nodes} == {"a", "b", "c"} for nodes in replicas(bench))
    assert set(Counter(node for nodes in replicas(bench) for node in nodes).values()) == {15}
    assert set(Counter(nodes[0] for nodes in replicas(bench)).values()) == {5}


def test_with_fewer_racks_than_replicas_every_rack_has_one():
    bench = cluster(["a", "a", "a", "b"])
    bench.create(CreateTopic("t", 12, 3))
    assert all(4 in nodes for nodes in replicas(bench))
    assert all(len(set(nodes)) == 3 for nodes in replicas(bench))


def test_brokers_with_more_cores_get_more():
    bench = Bench()
    for node, shards in ((1, 1), (2, 1), (3, 4)):
        bench.join(node, shards=shards)
    bench.create(CreateTopic("t", 60, 1))
    assert Counter(nodes[0] for nodes in replicas(bench)) == {1: 10, 2: 10, 3: 40}


def test_new_partitions_go_to_the_brokers_that_have_the_fewest_of_all_topics():
    bench = Bench(brokers=(1, 2))
    bench.create(CreateTopic("a", 6, 1))
    bench.join(3)
    bench.create(CreateTopic("b", 3, 1), CreateTopic("c", 3, 1))
    assert replicas(bench, "b") == [(3,)] * 3
    assert sorted(replicas(bench, "c")) == [(1,), (2,), (3,)], "the topics of one request count for each other"
    bench.do(DeleteTopics((TopicReference("a"),)))
    bench.do(CreatePartitions((AddPartitions("b", 8),)))
    assert Counter(replicas(bench, "b")[3:]) == {(1,): 3, (2,): 2}


def test_a_fenced_broker_leads_nothing_new_and_follows_only_where_it_must():
    bench = Bench(brokers=(1, 2, 3, 4))
    bench.fence(2)
    bench.create(CreateTopic("three", 6, 3), CreateTopic("four", 6, 4))
    assert all(2 not in nodes for nodes in replicas(bench, "three"))
    assert all(2 in nodes and nodes[0] != 2 for nodes in replicas(bench, "four"))
    assert Counter(nodes[0] for nodes in replicas(bench, "three") + replicas(bench, "four")) == {1: 4, 3: 4, 4: 4}


def test_no_more_replicas_than_brokers_and_none_when_all_are_fenced():
    bench = Bench(brokers=(1, 2))
    (result,) = bench.create(CreateTopic("t", 1, 3))
    assert "factor of 3 cannot be reached because only 2 broker(s) are registered" in result.message
    placer = Placer((Candidate(1, "", 1, fenced=True),), Load())
    with pytest.raises(Rejected, match=r"All brokers are currently fenced\."):
        placer.place(1, 1)


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(1, 8), st.booleans()), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=6),
)
def test_any_placement_keeps_the_rules(brokers, topics):
    chosen = tuple(Candidate(node, rack, cores, fenced) for node, (rack, cores, fenced) in enumerate(brokers))
    placer = Placer(chosen, Load())
    alive = {broker.node for broker in chosen if not broker.fenced}
    for count, factor in topics:
        if not alive or factor > len(chosen):
            with pytest.raises(Rejected):
                placer.place(count, factor)
            continue
        for nodes in placer.place(count, factor):
            assert len(set(nodes)) == factor
            assert nodes[0] in alive
            racks = {chosen[node].rack for node in nodes}
            assert len(racks) == min(factor, len({broker.rack for broker in chosen}))
            assert placer.extend(nodes[:1], factor)[0] == nodes[0]


@given(st.integers(1, 7), st.integers(1, 50), st.integers(1, 7))
def test_equal_brokers_get_equal_shares(brokers, count, factor):
    factor = min(factor, brokers)
    placer = Placer(tuple(Candidate(node, "", 1, fenced=False) for node in range(brokers)), Load())
    placed = placer.place(count, factor)
    for counts in (Counter(nodes[0] for nodes in placed), Counter(node for nodes in placed for node in nodes)):
        every = [counts[node] for node in range(brokers)]
        assert max(every) - min(every) <= 1 + (counts is not None and factor > 1)


# Leaders


def views(bench, **leaders):
    """What is known of each group: its preferred leader leads and all are in sync, but for ``leaders``, by index."""
    partitions = bench.state.topics["t"].partitions
    known = {p.raft_group: LeaderView(p.replicas[0], p.replicas) for p in partitions}
    for index, view in leaders.items():
        known[partitions[int(index[1:])].raft_group] = view
    return known.get


def test_leadership_goes_back_to_the_first_replica_that_may_lead():
    bench = Bench(brokers=(1, 2, 3))
    bench.create(CreateTopic("t", 3, 3))  # (1, 2, 3), (2, 3, 1), (3, 1, 2)
    first, second, third = bench.state.topics["t"].partitions
    everybody = (1, 2, 3)
    assert plan_transfers(bench.state, views(bench)) == []
    view = views(bench, p0=LeaderView(3, everybody), p1=LeaderView(1, (1, 3)), p2=LeaderView(1, (1,)))
    topic_id = bench.state.topics["t"].topic_id
    assert plan_transfers(bench.state, view) == [
        LeaderTransfer(first.raft_group, topic_id, 0, 3, 1),
        LeaderTransfer(second.raft_group, topic_id, 1, 1, 3),
    ], "broker 2 is not in sync for the second, broker 3 not for the third"
    assert plan_transfers(bench.state, view, resting={first.raft_group})[0].raft_group == second.raft_group
    bench.state.apply(BrokerFenced(1, bench.state.registry.brokers[1].epoch))
    assert [(t.index, t.target) for t in plan_transfers(bench.state, view)] == [(0, 2), (1, 3)]
    view = views(bench, p0=None, p2=LeaderView(3, (3,)))
    assert plan_transfers(bench.state, view) == [], "a group that elects and one whose leader is alone are left alone"
    assert third.replicas[0] == 3


def test_with_few_transfers_at_once_the_fullest_leaders_are_relieved_first():
    bench = Bench(brokers=(1, 2, 3))
    bench.create(CreateTopic("t", 9, 3))
    leads = {p.raft_group: LeaderView(1, p.replicas) for p in bench.state.topics["t"].partitions}
    leads[bench.state.topics["t"].partitions[0].raft_group] = LeaderView(2, (1, 2, 3))
    every = plan_transfers(bench.state, leads.get)
    assert len(every) == 7
    assert {t.leader for t in plan_transfers(bench.state, leads.get, limit=6)} == {1}


def test_with_one_broker_down_leadership_is_even_over_the_others():
    bench = Bench(brokers=(1, 2, 3, 4))
    bench.create(CreateTopic("t", 60, 3))
    bench.fence(2)
    leads = {p.raft_group: LeaderView(p.replicas[0], (1, 3, 4)) for p in bench.state.topics["t"].partitions}
    moved = Counter(t.target for t in plan_transfers(bench.state, leads.get))
    assert sum(moved.values()) == 15
    assert max(moved.values()) - min(moved[node] for node in (1, 3, 4)) <= 2

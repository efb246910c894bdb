"""Replicas are in sync while they have what their leader has, within the time that the setting gives."""

from types import SimpleNamespace

import pytest

from millstream.model.cluster import LOST, UNKNOWN
from millstream.model.replication import NO_REPLICA
from millstream.partition.partition import SyncedReplicas
from millstream.partition.replica.in_sync import LOST_US, WHOLE, InSync
from millstream.raft.group import PeerState
from millstream.telemetry.metrics import StatsSlab

LAG_US = 1_000_000
ID = bytes(16)


class Bench:
    def __init__(self):
        self.now = 10_000_000
        self.alive = {1, 2, 3}
        self.told, self.nodes = [], []
        self.group = SimpleNamespace(
            term=4, peers=[], committed_position=10, end_position=10, is_serving=True, elects=True, leader=NO_REPLICA
        )
        self.stats = StatsSlab()
        self.partition = SimpleNamespace(
            group=self.group,
            raft_group=7,
            topic_id=ID,
            index=2,
            closed=False,
            log=SimpleNamespace(files=SimpleNamespace(lost=False), next_offset=10),
            replicas=SyncedReplicas(),
            wake_readers=lambda: self.woken.append(self.group.leader),
        )
        self.woken = []
        self.table = SimpleNamespace(
            by_group={7: self.partition},
            on_open=lambda callback: None,
            on_close=lambda callback: None,
            on_lead=lambda callback: callback(self.partition),
        )
        clock = SimpleNamespace(now_us=lambda: self.now, call_later=lambda *_: None)
        shard = SimpleNamespace(reactor=clock, stats=self.stats)
        self.at_rest = frozenset()
        self.watch = InSync(
            shard,
            self.table,
            1,
            self.report,
            self.heard,
            lambda: frozenset(self.alive),
            lambda: LAG_US,
            lambda: self.at_rest,
        )

    def report(self, topic_id, index, epoch, in_sync):
        assert (topic_id, index) == (ID, 2)
        self.told.append((epoch, in_sync))

    def heard(self, topic_id, index, term, node):
        self.nodes.append((term, node))

    def look(self, second, third, *, after_us=0, end=10, silent=()):
        """Broker 2 and 3 have so much on their disks; who is silent has not answered since the last look."""
        before = {peer.replica: peer.contact_us for peer in self.group.peers}
        self.now += after_us
        self.group.end_position = end
        self.group.peers = [
            PeerState(node, durable, durable, before[node] if node in silent else self.now)
            for node, durable in ((2, second), (3, third))
        ]
        for _ in self.watch._walk():
            pass
        return self.told.pop() if self.told else None


def test_a_new_leader_counts_who_has_what_is_committed_and_the_others_when_they_do():
    bench = Bench()
    assert bench.look(10, 0) == (4, (1, 2))
    assert bench.look(10, 9, after_us=500_000) is None
    assert bench.look(10, 10, after_us=500_000) == (4, (1, 2, 3))
    assert bench.look(10, 10, after_us=500_000) is None


def test_a_replica_that_has_lost_a_part_is_out_of_sync_at_once():
    bench = Bench()
    assert bench.look(10, 10) == (4, (1, 2, 3))
    assert bench.look(4, 10) == (4, (1, 3))
    assert bench.look(9, 10, after_us=500_000) is None
    assert bench.look(10, 10, after_us=500_000) == (4, (1, 2, 3))


def test_of_a_log_without_records_all_replicas_are_in_sync_at_once():
    bench = Bench()
    bench.partition.log.next_offset = 0
    assert bench.look(0, 0) == (4, (1, 2, 3))
    assert bench.partition.replicas.count == 3
    assert bench.look(0, 10, after_us=LAG_US + 1) == (4, (1, 3)), "for as long as the setting says"


def test_replicas_are_counted_again_between_two_walks():
    bench = Bench()
    bench.watch.start()
    bench.look(0, 10)
    assert bench.partition.replicas.count == 2
    bench.group.peers = [PeerState(node, 10, 10, bench.now) for node in (2, 3)]
    bench.partition.replicas.recount(bench.partition)
    assert bench.partition.replicas.count == 3
    assert not bench.told, "the next walk reports it"
    assert bench.look(10, 10) == (4, (1, 2, 3))
    bench.group.term = 5
    bench.partition.replicas.count = 2
    bench.partition.replicas.recount(bench.partition)
    assert bench.partition.replicas.count == 2, "nothing is known of a new term before it is served"


def test_a_replica_that_lags_is_in_sync_for_as_long_as_the_setting_says():
    bench = Bench()
    bench.look(10, 10)
    assert bench.look(20, 10, after_us=LAG_US // 2, end=20) is None
    assert bench.look(30, 15, after_us=LAG_US // 2 - 1, end=30) is None
    assert bench.look(40, 29, after_us=LAG_US // 2 + 2, end=40) == (4, (1, 2))
    assert bench.look(50, 40, after_us=LAG_US, end=50) == (4, (1, 2, 3)), "it has what the leader had at the last look"


def test_a_silent_replica_and_one_whose_broker_is_fenced_are_not_in_sync():
    bench = Bench()
    bench.look(10, 10)
    assert bench.look(10, 10, after_us=LAG_US, silent=(3,)) == (4, (1, 2))
    bench.alive.discard(2)
    assert bench.look(10, 10) == (4, (1, 3))


def test_a_group_at_rest_is_looked_at_when_something_else_changes():
    bench = Bench()
    bench.at_rest = frozenset({7})
    assert bench.look(10, 10) == (4, (1, 2, 3))
    bench.look(0, 0)  # nobody asks
    assert bench.partition.replicas.count == 3
    bench.alive.discard(3)
    assert bench.look(10, 10) == (4, (1, 2))
    bench.alive.add(3)
    assert bench.look(10, 10) == (4, (1, 2, 3))
    bench.look(10, 10)
    bench.watch.replicas_changed(7)
    assert bench.look(10, 10) == (4, (1, 2, 3))
    bench.at_rest = frozenset()
    assert bench.look(10, 10, after_us=LAG_US, silent=(3,)) == (4, (1, 2))


def test_a_replica_at_rest_that_has_told_its_leader_is_left_out_until_something_changes():
    bench = Bench()
    bench.group.is_serving, bench.group.leader = False, 3
    bench.look(10, 10)
    bench.at_rest = frozenset({7})
    bench.look(10, 10)
    bench.group.leader = 2
    bench.look(10, 10)
    assert bench.nodes == [(4, 3)], "nobody asks"
    assert bench.stats.gauge("replica_count").value == 1
    bench.at_rest = frozenset()
    bench.look(10, 10)
    assert bench.nodes == [(4, 3), (4, 2)]


def test_a_group_at_rest_without_a_broker_that_is_not_alive_is_left_out_and_counts_as_under_replicated():
    bench = Bench()
    bench.at_rest = frozenset({7})
    bench.alive.discard(3)
    assert bench.look(10, 4) == (4, (1, 2))
    for _ in range(3):
        assert bench.look(0, 0) is None, "nobody asks"
        gauges = [bench.stats.gauge(f"replica_{name}").value for name in ("leaders", "under_replicated", "lag_max")]
        assert gauges == [1, 1, 6]
    bench.alive.add(3)
    assert bench.look(10, 10) == (4, (1, 2, 3))
    assert bench.stats.gauge("replica_under_replicated").value == 0


def test_every_so_often_a_walk_leaves_out_nothing():
    bench = Bench()
    bench.at_rest = frozenset({7})
    bench.look(10, 10)
    assert {bench.stats.gauge(name).value for name in ("replica_count", "replica_leaders")} == {1}
    for _ in range(WHOLE):
        bench.look(10, 10)
    bench.group.term = 9
    told = [bench.look(10, 10) for _ in range(WHOLE)]
    assert [one for one in told if one] == [(9, (1, 2, 3))]
    assert bench.stats.gauge("replica_term_max").value == 9


def test_a_group_at_rest_of_which_a_replica_is_not_in_sync_is_looked_at():
    bench = Bench()
    bench.at_rest = frozenset({7})
    assert bench.look(10, 4) == (4, (1, 2))
    assert bench.look(10, 10) == (4, (1, 2, 3))


@pytest.mark.parametrize("change", ["term", "resigned", "gone"])
def test_a_new_term_is_told_anew(change):
    bench = Bench()
    bench.look(10, 10)
    if change == "term":
        bench.group.term = 5
    else:
        bench.group.is_serving = change != "resigned"
        if change == "gone":
            bench.table.by_group.clear()
        assert bench.look(10, 10) is None
        bench.group.is_serving = True
        bench.table.by_group[7] = bench.partition
    assert bench.look(10, 10) == (bench.group.term, (1, 2, 3))


def test_a_replica_that_follows_tells_whom_it_hears_and_when_it_hears_nobody():
    bench = Bench()
    bench.look(10, 10)
    bench.group.is_serving = False
    bench.watch._resigned(bench.partition)
    bench.look(10, 10)
    assert bench.nodes == [(4, UNKNOWN)], "told once"
    bench.look(10, 10, after_us=LOST_US - 1)
    assert bench.nodes == [(4, UNKNOWN)]
    bench.look(10, 10, after_us=1)
    assert bench.nodes.pop() == (4, LOST)
    bench.group.leader = 3
    bench.look(10, 10)
    bench.group.leader = NO_REPLICA
    bench.look(10, 10)
    assert bench.nodes == [(4, UNKNOWN), (4, 3), (4, UNKNOWN)]
    assert len(bench.woken) == 4, "who reads here looks again at each change"


def figures(bench):
    names = ("count", "leaders", "leaderless", "under_replicated", "lag_max", "term_max")
    return tuple(bench.stats.gauge(f"replica_{name}").value for name in names)


def test_the_metrics_say_who_leads_who_lags_and_who_knows_no_leader():
    bench = Bench()
    bench.look(10, 4)
    assert figures(bench) == (1, 1, 0, 1, 6, 4)
    assert bench.stats.counter("replica_elections").value == 1
    bench.group.is_serving = False
    bench.look(10, 10)
    assert figures(bench) == (1, 0, 1, 0, 0, 4)
    bench.group.leader = 2
    bench.look(10, 10)
    assert figures(bench) == (1, 0, 0, 0, 0, 4)


def test_the_only_replica_tells_nothing():
    bench = Bench()
    bench.group.peers, bench.group.elects = [], False
    for _ in bench.watch._walk():
        pass
    assert bench.told == []

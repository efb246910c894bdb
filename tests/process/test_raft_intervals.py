"""``raft.election.timeout.ms`` and ``raft.heartbeat.interval.ms`` act in a cluster of processes."""

import time

import pytest
from cluster_support import all_in_sync, create, partitions

from millstream.testing import cluster
from waits import until

SLOW = {"raft.heartbeat.interval.ms": 1_000, "raft.election.timeout.ms": 8_000}


@pytest.mark.process
@pytest.mark.ci
def test_a_dead_leader_is_replaced_after_the_election_timeout_that_is_set():
    with cluster(3, SLOW) as made:
        create(made.brokers[1], "t", 1, 3)
        until(lambda: all_in_sync(made, "t"))
        leader = next(iter(partitions(made.brokers[1], "t"))).leader
        other = next(broker for node, broker in made.brokers.items() if node != leader)
        killed = time.monotonic()
        made.kill(leader)
        until(lambda: next(iter(partitions(other, "t"))).leader not in (leader, -1))
        # The last heartbeat was at most about one interval before the kill. With the defaults a leader is there after
        # two seconds.
        assert time.monotonic() - killed > 5

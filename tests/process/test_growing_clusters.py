"""Brokers join a running cluster, leave it, come back with an empty disk; a single broker grows to three."""

import pytest
from cluster_support import Unordered, all_in_sync, create, metadata, partitions, read, send
from growing_support import in_sync, millstream, status
from moving_support import Load, moving, replicas_of

from millstream.testing import cluster
from millstream.testing.clusters import free_ports
from millstream.testing.process import Broker, BrokerFailed
from waits import PATIENCE_S, until

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.ci
def test_brokers_join_are_drained_leave_and_are_replaced_under_load():
    with cluster(3) as made:
        one = made.brokers[1]
        create(one, "t", 6, 3)
        with Load(made.bootstrap, "t", 6) as load:
            until(lambda: len(load.acked) > 100)

            made.add(4)
            until(lambda: len(metadata(one).brokers) == 4)
            millstream(one, "cluster", "rebalance")
            held = [node for nodes in replicas_of(one, "t") for node in nodes]
            assert held.count(4) >= 4, "18 replicas on four brokers"

            millstream(one, "cluster", "drain", "2")
            assert all(part.leader != 2 for part in partitions(one, "t"))
            millstream(one, "cluster", "undrain", "2")

            millstream(one, "cluster", "decommission", "3")
            assert sorted(metadata(one).brokers) == [1, 2, 4]
            assert all(sorted(nodes) == [1, 2, 4] for nodes in replicas_of(one, "t"))
            gone = made.brokers.pop(3)
            until(lambda: "everything is in the segments" in gone.log_path.read_text())
            assert "this broker has left the cluster, and stops" in gone.log_path.read_text()
            gone.close()

            made.kill(2)
            made.replace(2)
            until(lambda: not moving(one) and all(in_sync(one, "t")))
            until(lambda: status(one)["healthy"])
            assert status(one)["voters"] == [1, 2, 4]
            before = len(load.acked)
            until(lambda: len(load.acked) > before + 100)
        assert not load.failed
        made.kill(1)
        made.restart(1)
        assert read(made.bootstrap, "t", 6, len(load.acked)) == Unordered(load.acked)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("leaving", [1, 3])
def test_a_broker_that_holds_nothing_stops_when_it_is_let_go_and_is_refused_afterwards(leaving):
    """Nothing moves, so that nothing but the end of its membership reaches the broker."""
    with cluster(3, networks=False) as made:
        stays, gone = made.brokers[2], made.brokers.pop(leaving)
        millstream(stays, "cluster", "decommission", str(leaving))
        assert gone.wait(PATIENCE_S) == 0
        assert "this broker has left the cluster, and stops" in gone.log_path.read_text()
        assert sorted(broker["id"] for broker in status(stays)["brokers"]) == sorted(made.brokers)
        with pytest.raises(BrokerFailed, match=f"broker {leaving} has left this cluster"):
            gone.start()
        gone.close()


@pytest.mark.slow
def test_the_replicas_of_a_broker_that_stays_dead_move_to_the_others():
    with cluster(3, {"dead.broker.replicas.move.after.ms": 3_000}) as made:
        one = made.brokers[1]
        create(one, "t", 6, 3)
        with Load(made.bootstrap, "t", 6) as load:
            until(lambda: len(load.acked) > 100)
            made.add(4)
            until(lambda: len(metadata(one).brokers) == 4)
            made.kill(3)
            until(lambda: all(sorted(nodes) == [1, 2, 4] for nodes in replicas_of(one, "t")))
            until(lambda: not moving(one) and all(in_sync(one, "t")))
            made.restart(3)
            until(lambda: status(one)["healthy"])
        assert not load.failed
        assert read(made.bootstrap, "t", 6, len(load.acked)) == Unordered(load.acked)


@pytest.mark.slow
@pytest.mark.ci
def test_a_single_broker_grows_to_three_and_its_internal_topics_with_it(tmp_path):
    (port,) = free_ports(1)
    peer = f"127.0.0.1:{port}"
    first = Broker(settings={"node.id": 1}, data_dir=tmp_path / "1", shards=1, memory="128MiB").start()
    create(first, "t", 3)
    acked = send(first.bootstrap, "t", 3, 90, "a")
    assert read(first.bootstrap, "t", 3, 90) == Unordered(acked)
    assert first.stop() == 0

    grown = {1: Broker(settings=_member(1, peer, peer), data_dir=tmp_path / "1", shards=1, memory="128MiB").start()}
    try:
        assert read(grown[1].bootstrap, "t", 3, 90) == Unordered(acked)
        for node, own in zip((2, 3), free_ports(2), strict=True):
            settings = _member(node, f"127.0.0.1:{own}", peer)
            grown[node] = Broker(settings=settings, data_dir=tmp_path / str(node), shards=1, memory="128MiB").start()
        one = grown[1]
        until(
            lambda: all(sorted(part.replicas) == [1, 2, 3] for part in partitions(one, "__consumer_offsets")),
        )
        assert all(nodes == [1] for nodes in replicas_of(one, "t"))
        millstream(one, "topic", "alter", "t", "--replication", "3")
        until(lambda: not moving(one) and all(in_sync(one, "__consumer_offsets")))
        until(lambda: status(one)["voters"] == [1, 2, 3])
        one.kill()
        others = f"{grown[2].bootstrap},{grown[3].bootstrap}"
        acked += send(others, "t", 3, 90, "b")
        assert read(others, "t", 3, 180) == Unordered(acked)
    finally:
        for broker in grown.values():
            broker.close()


def _member(node, peer, seeds):
    return {"node.id": node, "peer.listen": peer, "seeds": seeds, "shards.pin": "false"}


@pytest.mark.slow
def test_a_broker_comes_back_under_another_address_of_its_own():
    with cluster(3, networks=False) as made:
        create(made.brokers[1], "t", 3, 3)
        until(lambda: all_in_sync(made, "t"))
        assert made.brokers[3].stop() == 0
        (port,) = free_ports(1)
        made.brokers[3].settings["peer.listen"] = f"127.0.0.1:{port}"
        made.brokers[3].start()
        until(lambda: all_in_sync(made, "t"))
        made.kill(1)  # the others reach each other, too
        until(lambda: all(part.leader in (2, 3) for part in partitions(made.brokers[3], "t")))
        assert len(send(made.brokers[3].bootstrap, "t", 3, 30, "x")) == 30

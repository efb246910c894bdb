"""Replicas that can't be sent their entries one by one: behind the log start, wiped, of a compacted topic."""

import random
from typing import Any

import pytest

from millstream.raft import installing
from millstream.wire.records import build_batch, iter_batches, iter_records
from sim.brokers.world import Broker, Cluster
from sim.engine.disk import SimDisk

COMPACTED: dict[str, Any] = {
    "cleanup_policy": ("compact",),
    "segment_bytes": 2000,
    "min_cleanable_dirty_ratio": 0.01,
    "file_delete_delay_ms": 1000,
}


def led(cluster: Cluster) -> Broker:
    assert cluster.run(lambda: cluster.leader() is not None), "nobody leads"
    leader = cluster.leader()
    assert leader is not None
    return leader


def append(cluster: Cluster, broker: Broker, values: range, **how: int) -> None:
    for value in values:
        assert broker.append(value, **how)
        if value % 20 == 0 or value == values[-1]:
            until(cluster, value)


def until(cluster: Cluster, value: int) -> None:
    assert cluster.run(lambda: value in cluster.history.acknowledged), f"{value} is not acknowledged"


def wipe(cluster: Cluster, broker: Broker) -> None:
    """Give a broker that is down an empty disk; while nobody else fails its lost promises do no harm."""
    broker.disk = SimDisk(random.Random(1))
    cluster.history.replicas.pop(broker.replica, None)
    cluster.history.promised.pop(broker.replica, None)


def records_of(broker: Broker) -> list[Any]:
    """Every record of a broker's log, from the segments or from memory."""
    log, shard = broker.log, broker.shard
    assert shard is not None
    offset, data = log.start_offset, b""
    while offset < log.next_offset:
        found: Any = log.read(offset, log.next_offset, 1 << 20, minimum_one=True)
        if found is None:
            found = shard.call(log.read_cold, offset, log.next_offset, 1 << 20, True)
        part = bytes(found)
        found.release()
        data += part
        for batch in iter_batches(part):
            offset = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") + 1
    return [record for batch in iter_batches(data) for record in iter_records(batch)]


def behind_the_log_start(seed: int) -> tuple[Cluster, Broker, Broker]:
    """A cluster of which one replica is down, and the others have deleted most of what it lacks."""
    cluster = Cluster(seed)
    leader = led(cluster)
    append(cluster, leader, range(1, 6))
    away = next(one for one in cluster.brokers.values() if one is not leader)
    away.crash()
    append(cluster, leader, range(6, 101), size=700)
    leader.group.propose_log_start(80)
    leader.idle = False
    assert cluster.run(lambda: leader.log.start_offset == 80)
    return cluster, leader, away


def test_a_replica_that_is_behind_the_log_start_is_sent_files() -> None:
    cluster, leader, away = behind_the_log_start(10)
    cluster.heal()
    cluster.settle()
    assert cluster.history.seen["install"] == 1
    assert (away.log.start_offset, away.log.next_offset) == (80, 100)
    append(cluster, leader, range(101, 111))
    cluster.settle()
    others = {leader.replica, away.replica}
    cluster.cut = {(one, other) for one in others for other in set(cluster.brokers) - others}
    away.group.transfer(away.replica) if away is cluster.leader() else leader.group.transfer(away.replica)
    leader.idle = False
    assert cluster.run(lambda: cluster.leader() is away), "it leads like any other"
    append(cluster, away, range(111, 116))
    cluster.heal()
    cluster.settle()


def test_a_wiped_replica_is_sent_everything() -> None:
    cluster, _, away = behind_the_log_start(11)
    wipe(cluster, away)
    cluster.heal()
    cluster.settle()
    assert (away.log.start_offset, away.log.next_offset) == (80, 100)
    away.crash()
    cluster.heal()
    cluster.settle()
    assert cluster.history.seen["install"] == 1, "it has what it was sent"


@pytest.mark.parametrize("seed", range(12, 20))
def test_an_install_goes_through_crashes_loss_and_another_leader(seed: int) -> None:
    cluster, leader, away = behind_the_log_start(seed)
    chance = random.Random(seed)
    away.start()
    for _ in range(6):
        cluster.loss = chance.choice([0.0, 0.3])
        cluster.run(lambda: False, chance.randrange(1_000, 400_000))
        victim = chance.choice([away, away, leader])
        if victim.is_up:
            victim.crash()
        cluster.run(lambda: False, chance.randrange(1_000, 100_000))
        victim.start()
    cluster.heal()
    cluster.settle()
    assert away.log.start_offset == 80 and away.log.next_offset == 100
    append(cluster, led(cluster), range(200, 205))
    cluster.settle()


def test_a_wiped_replica_of_a_compacted_topic_has_the_last_value_of_each_key() -> None:
    cluster = Cluster(21, config={**COMPACTED, "min_cleanable_dirty_ratio": 0.0})
    leader = led(cluster)
    away = next(one for one in cluster.brokers.values() if one is not leader)
    away.crash()
    wanted = {}
    for round_ in range(8):
        for key in range(20):
            name, value = b"key%d" % key, b"%d of %d " % (round_, key) + bytes(200)
            wanted[name] = value
            data = build_batch([(name, value, (), 1000)])
            leader.idle = False
            leader.group.replicate((memoryview(data),), len(data), 1, 1000)
            assert cluster.run(lambda: leader.group.committed_offset == leader.log.next_offset)
    assert cluster.run(lambda: leader.log.files.clean_offset > 100, 600_000_000)
    wipe(cluster, away)
    away.start()
    end = leader.log.next_offset
    assert cluster.run(lambda: away.group.committed_offset == end)
    assert cluster.history.seen["install"] == 1
    assert {record.key: record.value for record in records_of(away)} == wanted
    assert len(records_of(away)) < 160


def received_bytes(broker: Broker) -> int:
    return broker.group._host.installs.received_bytes.value


@pytest.mark.parametrize("by_another_leader", [False, True])
def test_an_interrupted_install_goes_on_with_what_was_received(
    monkeypatch: pytest.MonkeyPatch, by_another_leader: bool
) -> None:
    monkeypatch.setattr(installing, "PART_BYTES", 2_000)
    cluster, leader, away = behind_the_log_start(31)
    away.start()

    def receiver() -> Any:
        return away.group._receiver

    def has_some() -> bool:
        receiving = receiver()._import
        return receiving is not None and receiving.first_offset < receiving.next_offset < receiving.end_offset

    assert cluster.run(has_some)
    others = set(cluster.brokers) - {away.replica}
    cluster.cut = {pair for other in others for pair in ((away.replica, other), (other, away.replica))}
    assert cluster.run(lambda: receiver()._kept is not None, 30_000_000), "the attempt was given up"
    kept = receiver()._kept
    before, reached = received_bytes(away), kept.next_offset
    assert before > 0
    if by_another_leader:
        leader.crash()
        cluster.cut = set()
        assert cluster.run(lambda: away.log.next_offset == 100), "the other replica leads, and sends the rest"
    cluster.heal()
    cluster.settle()
    assert (away.log.start_offset, away.log.next_offset) == (80, 100)
    assert cluster.history.seen["install"] == 1
    assert kept.is_complete, "the same attempt was completed"
    assert received_bytes(away) - before <= (kept.end_offset - reached) * 900, "nothing was sent twice"


@pytest.mark.parametrize("orderly", [False, True])
def test_a_receiver_that_is_restarted_in_the_middle_is_sent_only_the_rest(
    monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    monkeypatch.setattr(installing, "PART_BYTES", 2_000)
    cluster, _, away = behind_the_log_start(34)
    away.start()

    def reached() -> int:
        receiving: Any = away.group._receiver._import
        return 0 if receiving is None else receiving.next_offset

    assert cluster.run(lambda: 92 <= reached() < 97)
    before = received_bytes(away)
    if orderly:
        assert away.shard is not None
        away.shard.stop()
        away.shard = None
    else:
        away.crash()
    cluster.run(lambda: False, 100_000)
    away.start()
    cluster.heal()
    cluster.settle()
    assert (away.log.start_offset, away.log.next_offset) == (80, 100)
    assert cluster.history.seen["install"] == 1
    assert 0 < received_bytes(away) < before, "what was sealed is not sent again"


def test_what_an_interrupted_install_received_is_dropped_when_nobody_goes_on_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installing, "PART_BYTES", 2_000)
    monkeypatch.setattr(installing, "KEPT_US", 20_000_000)
    cluster, _, away = behind_the_log_start(32)
    away.start()
    assert cluster.run(lambda: away.group._receiver._import is not None)
    others = set(cluster.brokers) - {away.replica}
    cluster.cut = {pair for other in others for pair in ((away.replica, other), (other, away.replica))}
    assert cluster.run(lambda: away.group._receiver._kept is not None, 30_000_000)
    assert cluster.run(lambda: away.group._receiver._kept is None, 60_000_000)
    cluster.heal()
    cluster.settle()
    assert (away.log.start_offset, away.log.next_offset) == (80, 100)

"""Whole requests in sequences, spoken to three brokers at once about topics of every kind with three replicas.

Then every broker is killed, and all are started at once. No process ends before, no partition is failed after, what was
acknowledged is read back, and the replicas of each log agree.
"""

import json
import threading
import urllib.request

import pytest
from bench import processes
from cluster_support import QUIET, all_in_sync, read, send
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from repairs_support import metric
from sequences_support import SETTINGS, TOPICS, errors, fuzz_sequences, id_of

from millstream.format.segment import WalkEnd, parse_batch
from millstream.testing import cluster
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(900)]

STEADY, GROUP, TRANSACTION = "steady", "steady-readers", "steady-tx"
OWN = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1000000",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "-1",
    "storage.mode": "local",
}
"""What the steady topic has of its own: the requests may change the brokers' defaults."""
REQUESTS = 250
SENT = 200


@pytest.fixture
def three(tmp_path):
    replicated = {f"{topic}.replication.factor": 3 for topic in ("offsets.topic", "transaction.state.log")}
    settings = {**SETTINGS, **replicated, "objects.url": f"file://{tmp_path}/objects"}
    with cluster(3, settings, memory="256MiB", networks=False) as made:
        yield made
        for node, broker in made.brokers.items():
            print(f"--- what broker {node} said\n{broker.log_tail()}")


def world_of(three):
    """The world to speak about: a topic of each kind, and one that only the test writes."""
    client = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
    wanted = [NewTopic(name, 2, 3, config=how) for name, how in TOPICS.items()]
    for made in client.create_topics([*wanted, NewTopic(STEADY, 2, 3, config=OWN)]).values():
        made.result(60)
    found = client.describe_topics(TopicCollection([*TOPICS, STEADY]))
    ids = {name: id_of(future.result(60)) for name, future in found.items()}
    own = ids.pop(STEADY)
    return fuzz_sequences.Remembering(ids, apart=(STEADY, own, GROUP, TRANSACTION))


def commit_all(bootstrap, values):
    """One transaction with records and with the offsets of a group."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": TRANSACTION} | QUIET)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP} | QUIET)
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        producer.produce(STEADY, value, partition=0)
    offsets = [TopicPartition(STEADY, 0, 7), TopicPartition(STEADY, 1, 11)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
    producer.commit_transaction(60)
    consumer.close()


def committed(bootstrap):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP} | QUIET)
    found = consumer.committed([TopicPartition(STEADY, index) for index in (0, 1)], 60)
    consumer.close()
    return [one.offset for one in found]


def batches_of(path):
    """Checksum of each batch in the segments of a partition, by its first offset, last offset and leader epoch."""
    found = {}
    for file in sorted(path.glob("*.log")):
        data, position = file.read_bytes(), 0
        while position < len(data):
            try:
                batch = parse_batch(data, position, position, len(data))
            except WalkEnd:
                break
            found[batch.base_offset, batch.last_offset, batch.leader_epoch] = batch.crc
            position += batch.size
    return found


def replicas_agree(three):
    """After an orderly stop: no two replicas have different batches at one place. Returns how many were compared.

    One replica may have less in its segments: what it has compacted or given to the object store.
    """
    compared = 0
    logs = {node: broker.data_dir / "topics" for node, broker in three.brokers.items()}
    places = {path.relative_to(log) for log in logs.values() for path in log.glob("*/*") if path.is_dir()}
    for place in places:
        seen = {}
        for node, log in logs.items():
            for key, crc in batches_of(log / place).items():
                if key in seen:
                    assert seen[key] == crc, f"{place}: broker {node} has another batch at {key}"
                    compared += 1
                seen[key] = crc
    return compared


def failed_partitions(broker):
    with urllib.request.urlopen(f"{broker.http}/healthz", timeout=60) as answer:
        return json.load(answer).get("failed_partitions", [])


def test_three_brokers_that_are_killed_after_odd_sequences_start_at_once_and_agree(three, fresh_seed):
    world = world_of(three)
    until(lambda: all_in_sync(three, STEADY), "all are in sync")
    alive = {node: set(processes.tree(broker.pid)) for node, broker in three.brokers.items()}
    speakers = {node: fuzz_sequences.Speakers(world, broker.bootstrap) for node, broker in three.brokers.items()}
    threads = [
        threading.Thread(target=one.speak, args=(f"{fresh_seed}-{node}", 2, REQUESTS)) for node, one in speakers.items()
    ]
    for thread in threads:
        thread.start()
    acked = send(three.bootstrap, STEADY, 2, SENT, "steady")
    commit_all(three.bootstrap, [b"in-a-transaction-%d" % number for number in range(5)])
    acked += [b"in-a-transaction-%d" % number for number in range(5)]
    for thread in threads:
        thread.join()
    print(f"seed {fresh_seed}: {sum(one.answered.total() for one in speakers.values())} answers")
    for node, broker in three.brokers.items():
        assert not speakers[node].faults
        assert alive[node] <= set(processes.tree(broker.pid)), f"a process of broker {node} has ended"
        assert not errors(broker)
    for node in three.brokers:
        three.kill(node)
    three.start()
    until(lambda: all_in_sync(three, STEADY), "all are in sync again")
    found = read(three.bootstrap, STEADY, 2, len(acked))
    assert sorted(found) == sorted(acked)
    assert committed(three.bootstrap) == [7, 11]
    acked += send(three.bootstrap, STEADY, 2, 10, "after")
    assert len(read(three.bootstrap, STEADY, 2, len(acked))) == len(acked)
    for broker in three.brokers.values():
        until(lambda broker=broker: not metric(broker, "millstream_replica_lost"), "no replica is lost")
        assert failed_partitions(broker) == []
        assert not errors(broker)
    for broker in three.brokers.values():
        assert broker.stop() == 0
        assert not errors(broker)
    assert replicas_agree(three) > 10

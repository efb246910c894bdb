"""What tests of shared topics in a cluster share: who leads, and what is there in which order."""

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tiering import tier, value


def leader(broker, topic, partition=0):
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    found = client.list_topics(timeout=60).topics.get(topic)
    return found.partitions[partition].leader if found is not None and partition in found.partitions else -1


def produce(broker, topic, numbers, partition=0):
    """Send records, however long a leader is not found. A producer without an id does not ask a broker for one that is
    cut off; its batches may come twice.
    """
    failed = []
    options = {"acks": "all", "max.in.flight": 1, "linger.ms": 20, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **options})
    for number in numbers:
        producer.produce(
            topic,
            value(number),
            b"key %d" % number,
            partition,
            timestamp=1_700_000_000_000 + number,
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(240) == 0
    assert not failed


def in_order(found):
    """What was read, without what came twice, by number; offsets have no gap."""
    assert [one[0] for one in found] == list(range(len(found)))
    kept = dict.fromkeys(one[1:] for one in found)
    return [(number, *one) for number, one in enumerate(kept)]


def status(broker, topic):
    """The replicas on one broker, by partition."""
    return {one["partition"]: one for one in tier(broker, "status", topic)["partitions"]}


def uploaded(broker, topic, partition, end):
    """Whether everything of a partition is in objects, and this broker's disk has none of it."""
    one = status(broker, topic).get(partition)
    return (
        one is not None
        and one["archived_end_offset"] == one["high_watermark"] == one["local_start_offset"]
        and one["high_watermark"] >= end
    )

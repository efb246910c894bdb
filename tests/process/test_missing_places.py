"""A part of the data directory that is not there, as when its file system is not mounted, is no new broker."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.testing.process import BrokerFailed

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def produce(broker, values):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for value in values:
        producer.produce("t", value, partition=0)
    assert producer.flush(60) == 0


def consume(broker, count):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("t", 0, 0)])
    try:
        return [message.value().decode() for message in consumer.consume(count, 30)]
    finally:
        consumer.close()


def test_after_an_orderly_stop(broker_factory):
    broker = broker_factory(topics={"t": 1})
    produce(broker, ["a", "b"])
    assert broker.stop() == 0
    for name in ("wal", "controller", "topics"):
        place, aside = broker.data_dir / name, broker.data_dir.parent / f"{broker.data_dir.name}.{name}"
        place.rename(aside)
        for mount_point in (False, True):  # the second attempt shows that the first changed nothing
            if mount_point:
                place.mkdir()
            with pytest.raises(BrokerFailed, match=f"{name} is empty, but .* is its file system mounted"):
                broker.start()
        place.rmdir()
        aside.rename(place)
    broker.start()
    assert consume(broker, 2) == ["a", "b"]


def test_after_a_crash_a_write_ahead_log_that_is_missing_is_not_begun_anew(broker_factory):
    """What was acknowledged since the last checkpoint is in it alone, and its offsets would be given out again."""
    broker = broker_factory(topics={"t": 1})
    produce(broker, ["a"])
    assert broker.stop() == 0
    broker.restart()
    produce(broker, ["b", "c"])
    broker.kill()
    place, aside = broker.data_dir / "wal", broker.data_dir.parent / f"{broker.data_dir.name}.wal"
    place.rename(aside)
    with pytest.raises(BrokerFailed, match="wal is empty, but"):
        broker.start()
    aside.rename(place)
    broker.start()
    assert consume(broker, 3) == ["a", "b", "c"]

"""A part of the data directory that is not there, as when its file system is not mounted, is no new broker."""

import shutil

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.testing.process import BrokerFailed

pytestmark = pytest.mark.process


def produce(broker, values, topic="t"):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def refusal(broker, value):
    """The name of the error that a producer without retries gets."""
    producer, said = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "retries": 0}), []
    producer.produce("t", value, partition=0, on_delivery=lambda error, _: said.append(error))
    assert producer.flush(60) == 0
    return said[0].name()


def consume(broker, count, topic="t"):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
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


def test_after_an_orderly_stop_a_partition_without_its_files_is_not_served_and_the_others_are(broker_factory):
    """Its offsets would be given out again. The next start, which has no note of that stop, says the same."""
    broker = broker_factory(topics={"t": 1, "other": 1})
    produce(broker, ["a", "b"])
    produce(broker, ["c"], "other")
    assert broker.stop() == 0
    (place,) = (path.parent for path in broker.data_dir.glob("topics/*/0/*.log") if b"a" in path.read_bytes()[61:])
    shutil.rmtree(place.parent)
    for _ in range(2):
        broker.start()
        assert consume(broker, 1, "other") == ["c"]
        assert refusal(broker, "d") == "KAFKA_STORAGE_ERROR"
        assert "not served: " in broker.log_path.read_text()
        assert "offsets 0 to 1 were in a segment that is missing" in broker.log_path.read_text()
        assert broker.stop() == 0

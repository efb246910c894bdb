"""Beyond each bound of docs/scale.md clients are refused in words, and what is there already is served."""

import re

import pytest
from bench import scale, scale_things
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

pytestmark = pytest.mark.process

BOUNDS = {
    "partitions.per.shard.max": 3,
    "group.consumer.max.size": 2,
    "max.incremental.fetch.session.cache.slots": 2,
}


@pytest.fixture
def broker(broker_factory):
    return broker_factory(topics={"full": 3}, shards=1, settings=BOUNDS)


def refused(futures):
    """The words with which one future was refused."""
    (future,) = futures.values()
    with pytest.raises(KafkaException) as error:
        future.result(60)
    return error.value.args[0].str()


def test_more_partitions_than_a_broker_may_have_are_refused_and_the_setting_is_live(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    words = (
        r"Broker \d+ would have 4 partitions with their replicas, and partitions\.per\.shard\.max allows 3 of them\."
    )
    assert re.match(words, refused(admin.create_topics([NewTopic("more", 1)])))
    assert re.match(words, refused(admin.create_partitions([NewPartitions("full", 4)])))
    entry = ConfigEntry("partitions.per.shard.max", "4", incremental_operation=AlterConfigOpType.SET)
    (done,) = admin.incremental_alter_configs([ConfigResource("broker", "0", incremental_configs=[entry])]).values()
    done.result(60)
    (done,) = admin.create_topics([NewTopic("more", 1)]).values()
    done.result(60)


def test_a_bound_below_what_a_broker_has_stops_neither_its_start_nor_its_clients(broker):
    broker.stop()
    broker.settings["partitions.per.shard.max"] = 1
    broker.start()
    producer, failed = Producer({"bootstrap.servers": broker.bootstrap}), []
    for partition in range(3):
        producer.produce("full", b"one", partition=partition, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert failed == [None] * 3
    refused(AdminClient({"bootstrap.servers": broker.bootstrap}).create_topics([NewTopic("more", 1)]))


def test_one_request_creates_no_more_than_ten_thousand_partitions(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert "Excessively large number of partitions" in refused(admin.create_topics([NewTopic("huge", 10_001)]))


def test_a_full_consumer_group_takes_no_more_members_and_keeps_those_it_has(broker_factory):
    broker = broker_factory(shards=1, settings={"group.consumer.max.size": 2})
    things = scale_things.Things(broker)
    things.members(0, 2)
    with pytest.raises(scale_things.UnexpectedAnswer, match="error 81"):  # GROUP_MAX_SIZE_REACHED
        things.members(2, 1)
    things.close()


def test_without_a_free_slot_a_fetch_is_answered_in_full_and_has_no_session(broker):
    sessions = [scale.Session(broker.bootstrap, {"full": 3}) for _ in range(3)]
    numbers = []
    for session in sessions:
        session.ask(None, 0)
        numbers.append(session.number)
        session.close()
    assert [bool(number) for number in numbers] == [True, True, False]

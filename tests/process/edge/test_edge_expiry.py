"""Settings of Kafka's that say when producers and transactions are forgotten, and how often it is looked for them."""

import pytest
from edge_client import batch
from edge_transactions import Transaction

from millstream.testing.process import Broker
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from waits import until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker():
    settings = {
        "producer.id.expiration.ms": 300,
        "producer.id.expiration.check.interval.ms": 50,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    }
    with Broker(shards=2, memory="128MiB", settings=settings) as one:
        yield one


def test_a_partition_forgets_a_producer_that_writes_nothing(client):
    topic = client.create()[0]
    who = client.producer_id()

    def known(partition):
        asked = DescribeProducersRequest([DescribeProducersTopic(topic, [partition])])
        answer = client.connection.call(asked, DescribeProducersResponse, 0)
        return [one.producer_id for one in answer.topics[0].partitions[0].active_producers]

    for partition in (0, 1):
        data = batch(producer_id=who.producer_id, producer_epoch=0, base_sequence=0)
        assert client.error(topic, partition, data) == "NONE"
        until(lambda partition=partition: not known(partition))
        assert client.error(
            topic, partition, batch(producer_id=who.producer_id, producer_epoch=0, base_sequence=7)
        ) == ("NONE"), "an unknown producer begins anywhere"


def test_a_transaction_is_aborted_at_the_look_behind_its_timeout(client):
    for timeout_ms in (200, 2_000, 20_000, 200_000):  # the first in which this machine writes a record
        topic = client.create()[0]
        one = Transaction(client, f"short-{timeout_ms}", timeout_ms)
        if one.add(3, topic) == {topic: "NONE"} and one.produce(11, topic) == "NONE":
            break
    asked = DescribeTransactionsRequest([one.name]), DescribeTransactionsResponse, 0
    until(lambda: client.connection.call(*asked).transaction_states[0].transaction_state == "CompleteAbort")
    assert client.offset(topic, 0, -1, isolation=1)[2] == client.end(topic, 0) == 2

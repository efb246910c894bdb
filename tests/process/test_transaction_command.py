"""``millstream transaction`` against a broker: what is open is listed, and a marker ends it in one partition."""

import json

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.cli.__main__ import main
from millstream.client import LATEST, Cluster
from millstream.client.transactions import abort_in, producers_of
from millstream.testing import Broker

pytestmark = pytest.mark.process


def test_an_open_transaction_is_listed_described_and_ended_in_one_partition(capsys):
    with Broker(topics={"t": 2}, shards=2) as broker:

        def millstream(*words, code=0):
            assert main([*words, "--bootstrap", broker.bootstrap]) == code
            return capsys.readouterr()

        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer", "log_level": 0})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce("t", b"x", partition=partition)
        assert producer.flush(60) == 0
        (listed,) = json.loads(millstream("transaction", "list", "--state", "Ongoing", "--json").out)
        assert listed["transactional_id"] == "writer"
        described = json.loads(millstream("transaction", "describe", "writer", "--json").out)
        assert described["producer_id"] == listed["producer_id"]
        assert described["partitions"] == [{"topic": "t", "partition": partition} for partition in (0, 1)]
        assert "no transactional id" in millstream("transaction", "describe", "nobody", code=1).err
        where = ("--topic", "t", "-p", "1", "--producer-id", str(listed["producer_id"]), "--execute")
        assert "does not hang" in millstream("transaction", "abort", *where, code=1).err
        with Cluster(broker.bootstrap) as cluster:
            (opened,) = producers_of(cluster, "t", 1)
            assert opened.current_txn_start_offset == 0
            abort_in(cluster, "t", 1, opened)
            (ended,) = producers_of(cluster, "t", 1)
            assert ended.current_txn_start_offset == -1
            stable = cluster.list_offsets({("t", 0): LATEST, ("t", 1): LATEST}, read_committed=True)
            assert [stable["t", partition].offset for partition in (0, 1)] == [0, 2]
        assert "none is open there" in millstream("transaction", "abort", *where, code=1).err
        producer.abort_transaction(60)
        assert json.loads(millstream("transaction", "list", "--state", "Ongoing", "--json").out) == []


def test_a_group_is_described_while_a_transaction_holds_offsets_of_it(capsys):
    with Broker(topics={"t": 1}) as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        consumer = Consumer({**settings, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        producer = Producer({**settings, "transactional.id": "writer"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("t", b"x")
        producer.send_offsets_to_transaction([TopicPartition("t", 0, 1)], consumer.consumer_group_metadata(), 60)
        assert main(["group", "describe", "g", "--json", "--bootstrap", broker.bootstrap]) == 0
        (partition,) = json.loads(capsys.readouterr().out)["partitions"]
        assert partition["committed"] == 0
        producer.abort_transaction(60)
        consumer.close()

"""Transactions under a stock client: all or nothing, through kills of the broker, and between brokers."""

import time

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from transaction_copy import FROM, QUIET, TO, Copier, CopyInBackground, fill, read

from millstream.testing import Broker, cluster
from millstream.testing.history import History
from millstream.testing.history_check import verify
from waits import Patience

pytestmark = pytest.mark.process


def test_a_reader_sees_all_of_what_is_committed_and_nothing_of_what_is_not():
    with Broker(topics={FROM: 2, TO: 2}, shards=2) as broker:
        fill(broker.bootstrap, 2, 40)
        copier = Copier(broker.bootstrap, 2, every_other=2)
        assert copier.run(time.monotonic() + 240, 40)
        assert sorted(read(broker.bootstrap, 2, "read_committed")) == list(range(40))
        assert len(read(broker.bootstrap, 2, "read_uncommitted")) > 40
        successor = Copier(broker.bootstrap, 2)
        successor.run(time.monotonic() + 240, 40)
        copier.producer.begin_transaction()
        copier.producer.produce(TO, b"-1", partition=0)
        with pytest.raises(KafkaException):
            copier.producer.commit_transaction(60)
        assert sorted(read(broker.bootstrap, 2, "read_committed")) == list(range(40))
        copier.close()
        successor.close()


@pytest.mark.slow
@pytest.mark.ci
def test_each_record_is_copied_once_through_kills_of_the_broker():
    count = 1200
    with Broker(topics={FROM: 3, TO: 3}, shards=2) as broker:
        fill(broker.bootstrap, 3, count)
        copier = Copier(broker.bootstrap, 3, each=20, every_other=5)
        thread = CopyInBackground(copier, 240, count)
        kills = 0
        while thread.is_alive() and kills < 6:
            thread.join(3)
            if thread.is_alive():
                broker.kill()
                broker.restart()
                kills += 1
        thread.finish()
        copier.close()
        print(f"{kills} kills, {copier.began} producers, {copier.done} transactions")
        assert sorted(read(broker.bootstrap, 3, "read_committed")) == list(range(count))


def created(three):
    client = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
    for done in client.create_topics([NewTopic(FROM, 3, 3), NewTopic(TO, 3, 3)]).values():
        done.result(60)


@pytest.mark.slow
@pytest.mark.ci
def test_a_transaction_spans_brokers_and_outlives_each_of_them():
    count = 900
    history = History()
    with cluster(3) as three:
        created(three)
        fill(three.bootstrap, 3, count)
        copier = Copier(three.bootstrap, 3, each=20, every_other=5, history=history)
        thread = CopyInBackground(copier, 240, count)
        for node in (1, 2, 3):
            thread.join(5)
            if not thread.is_alive():
                break
            three.kill(node)
            thread.join(5)
            three.restart(node)
        thread.finish()
        copier.close()
        assert sorted(read(three.bootstrap, 3, "read_committed", history)) == list(range(count))
    verify(history, dense=False)


@pytest.mark.slow
def test_copiers_of_a_cluster_satisfy_the_history_checker_through_kills_of_brokers_and_copiers():
    count = 2400
    history = History()
    with cluster(3) as three:
        created(three)
        fill(three.bootstrap, 3, count)
        copiers = [
            Copier(three.bootstrap, [index], f"copier {index}", each=10, every_other=4, history=history)
            for index in range(3)
        ]
        threads = [CopyInBackground(copier, 400, count // 3) for copier in copiers]
        kills = 0
        while kills < 9 and any(thread.is_alive() for thread in threads):
            node = kills % 3 + 1
            threads[kills % 3].join(3)
            copiers[kills % 3].killed = True
            three.kill(node)
            threads[kills % 3].join(2)
            three.restart(node)
            kills += 1
            read(three.bootstrap, 3, "read_committed", history, f"reader {kills}")
        for thread in threads:
            thread.finish()
        for copier in copiers:
            copier.close()
        print(f"{kills} kills, {sum(one.began for one in copiers)} producers, {sum(one.done for one in copiers)} tries")
        assert sorted(read(three.bootstrap, 3, "read_committed", history)) == list(range(count))
    verify(history, dense=False)


def test_a_transaction_that_takes_too_long_is_aborted():
    with Broker(topics={TO: 1}) as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "slow", "transaction.timeout.ms": 1000}
        producer = Producer(settings | QUIET)
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(TO, b"1")
        assert producer.flush(60) == 0
        fill_other = Producer({"bootstrap.servers": broker.bootstrap} | QUIET)
        fill_other.produce(TO, b"2")
        assert fill_other.flush(60) == 0
        patience = Patience()
        while read(broker.bootstrap, 1, "read_committed") != [2]:
            patience.check("the reader is held back for ever")
        with pytest.raises(KafkaException):
            producer.commit_transaction(60)

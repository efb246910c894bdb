"""A transactional id that is not used expires, in the coordinator's log too; one with an open transaction stays."""

import json

import pytest
from confluent_kafka import Producer

from millstream.cli.__main__ import main
from millstream.client import Cluster
from millstream.client.coordinators import TRANSACTION, find_coordinator
from millstream.model.error_code import ErrorCode
from millstream.testing import Broker
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci]

QUICK = {
    "transactional.id.expiration.ms": 1,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
}


def begun(broker, transactional_id, value):
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 900_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce("t", value)
    assert producer.flush(120) == 0
    return producer


def test_an_unused_id_is_forgotten_and_one_with_an_open_transaction_is_not(tmp_path, capsys):
    def known(broker):
        assert main(["transaction", "list", "--json", "--bootstrap", broker.bootstrap]) == 0
        return {one["transactional_id"]: one for one in json.loads(capsys.readouterr().out)}

    with Broker(topics={"t": 1}, data_dir=tmp_path / "data") as broker:
        begun(broker, "unused", b"1").commit_transaction(120)
        open_one = begun(broker, "open", b"2")
        before = known(broker)
        assert set(before) == {"unused", "open"}
        broker.kill()
        del open_one

    with Broker(settings=QUICK, data_dir=tmp_path / "data") as broker:

        def only_the_open_one():
            listed = known(broker)
            assert "open" in listed or not listed
            return listed.keys() == {"open"}

        until(only_the_open_one, lambda: known(broker))
        assert main(["transaction", "describe", "unused", "--bootstrap", broker.bootstrap]) == 1
        assert "no transactional id" in capsys.readouterr().err
        with Cluster(broker.bootstrap) as cluster:
            connection = cluster.connection(find_coordinator(cluster, TRANSACTION, "unused"))
            late = EndTxnRequest("unused", before["unused"]["producer_id"], 0, True)
            assert connection.call(late, EndTxnResponse, 3).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        broker.kill()

    with Broker(data_dir=tmp_path / "data") as broker:
        assert main(["transaction", "describe", "unused", "--bootstrap", broker.bootstrap]) == 1
        assert "no transactional id" in capsys.readouterr().err, "it came back with the restart"
        assert main(["transaction", "describe", "open", "--bootstrap", broker.bootstrap]) == 0
        assert "Ongoing" in capsys.readouterr().out
        begun(broker, "unused", b"3").commit_transaction(120)
        after = known(broker)
        assert after.keys() == {"unused", "open"}
        assert after["open"]["producer_id"] == before["open"]["producer_id"]
        assert after["unused"]["producer_id"] not in {one["producer_id"] for one in before.values()}

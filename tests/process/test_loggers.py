"""Levels of a running broker's loggers: by the command and by Kafka's API, on every shard, and lines of JSON."""

import json

import pytest
from confluent_kafka import Producer

from millstream.cli.__main__ import main
from millstream.client.connection import Connection
from millstream.model.error_code import ErrorCode
from millstream.wire.messages import describe_configs as describing
from millstream.wire.messages import incremental_alter_configs as changing
from waits import until

pytestmark = pytest.mark.process


@pytest.fixture
def broker(broker_factory):
    return broker_factory(topics=["orders"], shards=2, settings={"logging.format": "json"})


def idempotent(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce("orders", b"x")
    assert producer.flush(60) == 0


def lines(broker):
    return [json.loads(line) for line in broker.log_path.read_text().splitlines() if line.startswith("{")]


def levels(capfd, broker):
    capfd.readouterr()
    assert main(["logger", "list", "--bootstrap", broker.bootstrap, "--json"]) == 0
    return {one["logger"]: (one["level"], one["ends_in_s"]) for one in json.loads(capfd.readouterr().out)}


def test_a_room_writes_more_for_a_time(broker, capfd):
    at = ["--bootstrap", broker.bootstrap]
    assert levels(capfd, broker)["cluster"] == ("INFO", None)
    assert main(["logger", "set", "cluster", "debug", "--minutes", "5", *at]) == 0
    level, ends_in_s = levels(capfd, broker)["cluster"]
    assert level == "DEBUG"
    assert 200 < ends_in_s <= 300
    assert levels(capfd, broker)["raft"] == ("INFO", None)
    idempotent(broker)
    found = until(lambda: [one for one in lines(broker) if one["level"] == "DEBUG"], "a line of the room")
    assert {one["room"] for one in found} == {"cluster"}
    assert found[0]["process"].startswith("shard ")
    assert main(["logger", "set", "cluster", "default", *at]) == 0
    assert levels(capfd, broker)["cluster"] == ("INFO", None)
    capfd.readouterr()
    assert main(["logger", "set", "clutser", "debug", *at]) == 1
    assert "known are root, app, cluster" in capfd.readouterr().err


def test_kafkas_api_sets_a_room_on_every_shard(broker, capfd):
    host, _, port = broker.bootstrap.rpartition(":")
    node = str(broker.about()["node_id"])
    connections = [Connection(host, int(port)) for _ in range(2)]

    def alter(*change):
        resource = changing.AlterConfigsResource(8, node, [changing.AlterableConfig(*change)])
        asked = changing.IncrementalAlterConfigsRequest([resource])
        answer = connections[0].call(asked, changing.IncrementalAlterConfigsResponse, 1).responses[0]
        return ErrorCode(answer.error_code).name

    def level(connection, logger):
        request = describing.DescribeConfigsRequest([describing.DescribeConfigsResource(8, node, None)])
        answer = connection.call(request, describing.DescribeConfigsResponse, 4).results[0]
        return {entry.name: entry.value for entry in answer.configs}[logger]

    assert alter("raft", 0, "DEBUG") == "NONE"
    for connection in connections:
        until(lambda connection=connection: level(connection, "raft") == "DEBUG", "the level on each shard")
        assert level(connection, "root") == "INFO"
    assert alter("raft", 1, None) == "NONE"
    for connection in connections:
        until(lambda connection=connection: level(connection, "raft") == "INFO", "the old level on each shard")
        connection.close()

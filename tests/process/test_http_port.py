"""The HTTP port of a running broker: health, the page, lag and counters by name, and which port it has."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from bench import processes
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.cli.exposition import read_exposition
from waits import PATIENCE_S

pytestmark = pytest.mark.process


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.status, answer.read().decode()


def produce(broker, topic, count):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, b"x" * 100, partition=number % 2)
    assert producer.flush(60) == 0


def commit(broker, group, topic, *offsets):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    places = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def test_lag_and_counters_go_by_name_on_the_page_and_in_the_metrics(broker_factory):
    broker = broker_factory(topics={"orders": 2, "quiet": 1}, shards=2)
    produce(broker, "orders", 20)
    commit(broker, "billing", "orders", 4, 10)
    found = read_exposition(f"{broker.http}/metrics", 30)
    assert found.value("millstream_topic_received_records_total", topic="orders") == 20
    assert found.value("millstream_topic_received_bytes_total", topic="orders") > 2000
    assert found.value("millstream_topic_size_bytes", topic="orders") > 2000
    assert "quiet" in found.values_of("topic", "millstream_topic_size_bytes")
    assert found.value("millstream_group_lag", group="billing", topic="orders") == 6

    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    reader.assign([TopicPartition("orders", partition, 0) for partition in range(2)])
    assert len(reader.consume(20, 30)) == 20
    reader.close()
    found = read_exposition(f"{broker.http}/metrics", 30)
    assert found.value("millstream_topic_fetched_bytes_total", topic="orders") >= 2000

    status, text = get(broker.http)
    assert status == 200
    assert "<td>orders</td><td>2</td><td>20</td>" in text
    assert "<td>billing</td><td>Empty</td><td>0</td><td>6</td><td>orders: 6</td>" in text

    broker.kill()
    broker.restart()
    found = read_exposition(f"{broker.http}/metrics", 30)
    assert found.value("millstream_topic_received_records_total", topic="orders") == 0, "a counter of this process"
    assert found.value("millstream_topic_size_bytes", topic="orders") > 2000
    assert found.value("millstream_group_lag", group="billing", topic="orders") == 6


def test_settings_bound_how_many_names_get_metrics(broker_factory):
    settings = {"metrics.topics.max": 2, "metrics.groups.max": 1}
    broker = broker_factory(topics={"a": 2, "b": 2, "c": 2}, settings=settings)
    produce(broker, "a", 2)
    for group in ("one", "two"):
        commit(broker, group, "a", 0, 0)
    found = read_exposition(f"{broker.http}/metrics", 30)
    assert len(found.values_of("topic", "millstream_topic_size_bytes")) == 2
    assert found.value("millstream_topics_left_out") == 2  # __consumer_offsets is a topic, too
    assert found.values_of("group") == ["one"]
    assert found.value("millstream_groups_left_out") == 1

    broker.stop()
    broker.settings |= {"metrics.topics.max": 0, "metrics.groups.max": 0}
    broker.start()
    assert not read_exposition(f"{broker.http}/metrics", 30).values_of("topic")


def test_a_broker_is_well_until_a_shard_is_silent(broker_factory):
    broker = broker_factory(shards=1)
    status, body = get(f"{broker.http}/healthz")
    assert (status, json.loads(body)) == (200, {"status": "ok", "accepts_writes": True, "failed_partitions": []})
    (shard,) = (pid for pid in processes.tree(broker.pid) if processes.name_of(pid).endswith(": shard 0"))
    os.kill(shard, signal.SIGSTOP)
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(f"{broker.http}/healthz")
        assert refused.value.code == 503
        assert json.loads(refused.value.read())["status"] == "unavailable"
        assert get(f"{broker.http}/metrics")[0] == 200, "memory is read, whoever is silent"
    finally:
        os.kill(shard, signal.SIGCONT)


def test_an_unknown_topic_is_named_in_json(broker):
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(f"{broker.http}/v1/topics/nowhere/segments")
    assert refused.value.code == 404
    assert json.loads(refused.value.read())["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_port_that_is_taken_is_one_sentence_with_the_remedy(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "millstream.cli", "start", "--data", str(tmp_path / "data"), "--shards", "1"]
        done = subprocess.run(
            [*command, "--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 69
    (line,) = done.stderr.splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "--http" in line


CHANGES = ["/v1/cluster", "/v1/recovery", "/v1/tiers/prepare", "/v1/tiers/recover"]


def sent(broker, method, path, body, headers):
    request = urllib.request.Request(f"{broker.http}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code


def test_a_web_page_of_another_site_changes_nothing(broker_factory):
    broker = broker_factory(shards=1, settings={"http.allowed.hosts": "mill.example.org"})
    drain = b'{"drain": 0}'
    simple = {"Content-Type": "text/plain"}
    json_kind = {"Content-Type": "application/json"}
    for path in CHANGES:
        assert sent(broker, "POST", path, drain, simple) == 415
        assert sent(broker, "POST", path, drain, json_kind | {"Origin": "http://evil.example"}) == 403
        rebound = {"Origin": "http://evil.example:9644", "Host": "evil.example:9644"}
        assert sent(broker, "POST", path, drain, json_kind | rebound) == 403
        assert sent(broker, "POST", path, b"[]", json_kind) == 400, "a program's request is read"
    registry = {"Content-Type": "text/plain", "Origin": "http://evil.example"}
    assert sent(broker, "POST", "/subjects/s-value/versions", b'{"schema": "\\"int\\""}', registry) == 403
    for page in ("/", "/v1/status", "/subjects"):
        assert sent(broker, "GET", page, None, {"Host": "evil.example"}) == 403
        assert sent(broker, "GET", page, None, {"Host": "mill.example.org"}) == 200
    for probe in ("/healthz", "/metrics"):
        assert sent(broker, "GET", probe, None, {"Host": "evil.example"}) == 200

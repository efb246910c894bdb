"""The audit's topic has every record of the files, in order, through kill -9 and a topic that was deleted."""

import json
import urllib.request

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.cli.__main__ import main
from millstream.testing.process import Broker
from millstream.testing.stem import run_command
from waits import until

pytestmark = pytest.mark.process

TOPIC = "who-did-what"


def lines(broker):
    path = broker.data_dir / "audit" / "audit.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def copied(broker, admin):
    """The values in the topic, without what follows from a second copy."""
    if TOPIC not in AdminClient(admin).list_topics(timeout=60).topics:
        return []
    consumer = Consumer({**admin, "group.id": "auditor", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "no end of the partition"
            if message.error() is not None:
                return list(dict.fromkeys(found))
            assert message.key() == b"0"
            found.append(message.value())
    finally:
        consumer.close()


def metric(broker, name):
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return sum(float(row.rsplit(" ", 1)[1]) for row in text.splitlines() if row.startswith(name))


def test_every_record_arrives_once_in_order_and_the_copying_records_nothing():
    settings = {
        "listener.security.protocol.map": "A:PLAINTEXT,S:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms": "10",
        "super.users": "User:ANONYMOUS",
        "audit.topic": TOPIC,
    }
    with Broker(None, settings, listen="A://127.0.0.1:0,S://127.0.0.1:0", shards=2) as broker:
        admin = {"bootstrap.servers": broker.bootstrap, "log_level": 0}

        def change(number):
            assert main(["topic", "create", f"t-{number}", "--bootstrap", broker.bootstrap]) == 0

        def whole():
            found = lines(broker)
            return len(found) >= 3 and copied(broker, admin) == found

        change(0)
        until(whole, lambda: (lines(broker)[-5:], copied(broker, admin)[-5:]))
        broker.kill()
        broker.restart()
        admin["bootstrap.servers"] = broker.bootstrap
        change(1)
        until(whole, lambda: (lines(broker)[-5:], copied(broker, admin)[-5:]))
        before = len(lines(broker))
        client = AdminClient(admin)
        client.delete_topics([TOPIC])[TOPIC].result(60)
        change(2)
        found = until(lambda: [json.loads(line) for line in copied_anew(broker, admin)], "the topic after its deletion")
        assert any(one.get("what") == ["t-2"] for one in found)
        logins = [one for one in map(json.loads, lines(broker)[before:]) if one["kind"] == "login"]
        assert len(logins) <= 4, "copying logs in once a connection, and is a change of nothing"
        assert metric(broker, "millstream_audit_topic_records_total") >= 2
        assert metric(broker, "millstream_audit_topic_gaps_total") == 0


def copied_anew(broker, admin):
    found = AdminClient(admin).list_topics(timeout=60).topics.get(TOPIC)
    if found is None or found.error is not None:
        return []
    records = copied(broker, admin)
    return records if any(b'"t-2"' in record for record in records) else []


def test_without_an_audit_the_setting_is_said_to_have_no_effect():
    with Broker(None, {"audit.topic": TOPIC}, shards=1) as broker:
        assert "audit.topic=who-did-what has no effect" in broker.log_path.read_text()


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "_schemas", "__pipelines", "no topic"])
def test_a_topic_of_the_brokers_own_is_refused(name, tmp_path):
    found = run_command("start", "--data", tmp_path, "--listen", "127.0.0.1:0", "--set", f"audit.topic={name}")
    assert found.returncode != 0
    assert "audit.topic" in found.stderr

"""Each client, unmodified: produces, consumes in a group, and goes on after ``kill -9`` of the broker.

The same producer and the same consumer live through the kill; after a second one a new consumer of the group continues
where the first had committed. At the end every value stands in the topic exactly once (all these producers are
idempotent). ``pytest tests/conformance --peer kafka`` runs the same against a real Apache Kafka.
"""

import json
import re

import pytest
from bench.peers.kafka import (
    CONSUMER_GROUP_COMMAND,
    CONSUMER_PERFORMANCE,
    GET_OFFSET_SHELL,
    PRODUCER_PERFORMANCE,
    TOPIC_COMMAND,
    VERIFIABLE_CONSUMER,
    VERIFIABLE_PRODUCER,
    java_command,
    java_tool,
)
from kafka_clients import CLIENTS, ConfluentConsumer, ConfluentProducer, Tool

pytestmark = pytest.mark.filterwarnings("default")

PACKAGED = ["confluent-kafka", "kafka-python", "aiokafka"]
"""Clients that come from the Python package index."""

KCAT = pytest.param("kcat", marks=pytest.mark.conformance)  # which a machine need not have
MINUTES = [pytest.param(name, marks=[pytest.mark.slow, pytest.mark.ci]) for name in PACKAGED[1:]]
PARTITIONS = 3
CODECS = ["gzip", "snappy", "lz4", "zstd"]


def values(prefix, count):
    return [f"{prefix}-{i:04}" for i in range(count)]


def everything(bootstrap, topic, wanted):
    """What stands in the topic, read by one independent client."""
    reader = ConfluentConsumer(bootstrap, topic, "reader-of-everything", **{"enable.partition.eof": False})
    got = reader.take(wanted)
    got += reader.poll()  # whatever would come behind: doubles
    reader.close()
    return got


def live_through_two_kills(start_broker, name):
    make_producer, make_consumer = CLIENTS[name]
    broker = start_broker(topics={"matrix": PARTITIONS})
    before, between, after = values("before", 300), values("between", 300), values("after", 100)

    producer = make_producer(broker.bootstrap, "matrix")
    producer.send(before)
    consumer = make_consumer(broker.bootstrap, "matrix", "matrix-group")
    assert sorted(set(consumer.take(before))) == before
    consumer.commit()

    broker.kill()
    broker.restart()

    producer.send(between)
    got = consumer.take(between)
    assert set(got) <= {*before, *between}
    consumer.commit()
    consumer.close()

    broker.kill()
    broker.restart()

    producer.send(after)
    successor = make_consumer(broker.bootstrap, "matrix", "matrix-group")
    assert sorted(successor.take(after)) == after, "the group did not continue where it had committed"
    successor.commit()
    successor.close()
    producer.close()

    wanted = [*before, *between, *after]
    assert sorted(everything(broker.bootstrap, "matrix", wanted)) == sorted(wanted)


@pytest.mark.process
@pytest.mark.parametrize("name", [PACKAGED[0], *MINUTES, KCAT])
def test_client_lives_through_kill_of_the_broker(start_broker, name):
    live_through_two_kills(start_broker, name)


@pytest.mark.conformance
@pytest.mark.parametrize("name", sorted({*CLIENTS} - {*PACKAGED, "kcat"}))
def test_java_console_tools_live_through_kill_of_the_broker(start_broker, name):
    live_through_two_kills(start_broker, name)


@pytest.mark.process
@pytest.mark.parametrize("producing", [*PACKAGED, KCAT])
def test_what_one_client_writes_the_others_read(start_broker, producing):
    write_and_read(start_broker, producing, PACKAGED)


@pytest.mark.conformance
@pytest.mark.parametrize("producing", [*PACKAGED, "kcat"])
def test_kcat_reads_what_a_client_writes(start_broker, producing):
    write_and_read(start_broker, producing, ["kcat"])


def write_and_read(start_broker, producing, reading):
    broker = start_broker(topics={"cross": PARTITIONS})
    written = values(producing, 200)
    producer = CLIENTS[producing][0](broker.bootstrap, "cross")
    producer.send(written)
    producer.close()
    for name in reading:
        consumer = CLIENTS[name][1](broker.bootstrap, "cross", f"group-of-{name}")
        assert sorted(consumer.take(written)) == written, name
        consumer.close()


@pytest.fixture(scope="module")
def packed(module_broker):
    """The address of a broker with a topic for each codec."""
    settings = {"group.initial.rebalance.delay.ms": 0}
    return module_broker(topics={f"packed-{codec}": 1 for codec in CODECS}, settings=settings).bootstrap


@pytest.mark.process
@pytest.mark.parametrize("codec", CODECS)
def test_compressed_batches_come_back_as_they_were(packed, codec):
    from confluent_kafka import Producer

    topic = f"packed-{codec}"
    written = [f"{codec}-{i:04}-" + "x" * 200 for i in range(500)]
    producer = Producer({"bootstrap.servers": packed, "compression.type": codec, "linger.ms": 50})
    for value in written:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    unable = {"kafka-python"} if codec == "snappy" else set()  # it would need one more package
    for name in sorted({"confluent-kafka", "kafka-python", "aiokafka"} - unable):
        consumer = CLIENTS[name][1](packed, topic, f"group-of-{name}-{codec}")
        assert consumer.take(written) == written, name
        consumer.close()


@pytest.mark.process
def test_a_group_shares_partitions_and_takes_over_those_of_a_member_that_leaves(start_broker):
    broker = start_broker(topics={"shared": 4})
    producer = ConfluentProducer(broker.bootstrap, "shared")
    first, second = (ConfluentConsumer(broker.bootstrap, "shared", "sharing") for _ in range(2))
    while not (len(first.consumer.assignment()) == len(second.consumer.assignment()) == 2):
        first.poll()
        second.poll()
    written = values("shared", 400)
    producer.send(written)
    got = {"first": [], "second": []}
    while len(got["first"]) + len(got["second"]) < len(written):
        got["first"] += first.poll()
        got["second"] += second.poll()
    assert sorted(got["first"] + got["second"]) == written
    assert got["first"]
    assert got["second"]
    first.commit()
    second.commit()
    second.close()
    more = values("later", 100)
    producer.send(more)
    assert set(first.take(more)) == set(more), "what the group gave out again in between may come twice"
    first.close()


@pytest.mark.process
def test_a_member_that_has_left_does_not_hold_up_its_successor_after_a_kill(start_broker):
    """The answer to a leave is a promise: with these session timeouts a forgotten one costs the successor minutes."""
    broker = start_broker(topics={"left": 1})
    producer = ConfluentProducer(broker.bootstrap, "left")
    for i in range(3):
        written = values(f"round-{i}", 20)
        producer.send(written)
        member = ConfluentConsumer(broker.bootstrap, "left", "leaving", **{"session.timeout.ms": 300_000})
        member.take(written, 30)
        member.commit()
        member.close()
        broker.kill()
        broker.restart()


@pytest.mark.conformance
def test_java_performance_tools_finish_although_the_broker_is_killed_on_the_way(start_broker):
    broker = start_broker(topics={"perf": PARTITIONS})
    total = 6000
    arguments = ["--topic", "perf", "--num-records", str(total), "--record-size", "100", "--throughput", "1000"]
    properties = ["--command-property", f"bootstrap.servers={broker.bootstrap}", "acks=all"]
    tool = Tool(
        java_command(PRODUCER_PERFORMANCE, [*arguments, "--reporting-interval", "500", *properties], level="error")
    )
    said = []
    while not any("records sent" in line for line in said):
        said += tool.read()
        assert tool.process.poll() is None, tool.said()
    broker.kill()
    broker.restart()
    assert tool.end_of_input() == 0, tool.said()
    said += tool.read(0)
    assert re.search(rf"^{total} records sent", said[-1]), said[-3:]

    done = java_tool(GET_OFFSET_SHELL, "--bootstrap-server", broker.bootstrap, "--topic", "perf")
    assert sum(int(line.rsplit(":", 1)[1]) for line in done.stdout.split()) == total, "idempotent, so none twice"

    done = java_tool(
        CONSUMER_PERFORMANCE,
        *["--bootstrap-server", broker.bootstrap, "--topic", "perf", "--num-records", str(total)],
        *["--group", "perf-group", "--timeout", "30000"],
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[1].split(",")[4]) == total


@pytest.mark.conformance
def test_java_verifiable_clients_agree_on_every_record(start_broker):
    broker = start_broker(topics={"verify": PARTITIONS})
    total = 3000
    where = ["--bootstrap-server", broker.bootstrap, "--topic", "verify"]
    consuming = ["--group-id", "verify-group", "--reset-policy", "earliest", "--verbose"]
    producing = ["--max-messages", str(total), "--throughput", "1000", "--acks", "-1"]
    consumer = Tool(java_command(VERIFIABLE_CONSUMER, [*where, *consuming]))
    producer = Tool(java_command(VERIFIABLE_PRODUCER, [*where, *producing]))
    events = []
    while sum(event["name"] == "producer_send_success" for event in events) < total // 4:
        events += map(json.loads, producer.read())
        assert producer.process.poll() is None, producer.said()
    broker.kill()
    broker.restart()
    assert producer.end_of_input() in (0, 1), producer.said()  # 1 if a send failed: this tool never tries again
    events += map(json.loads, producer.read(0))
    done = [event for event in events if event["name"] == "producer_send_success"]
    unknown = {event["value"] for event in events if event["name"] == "producer_send_error"}
    assert len(done) + len(unknown) == total
    assert len(done) > total // 2, "it went on after the restart"
    acknowledged = {(event["partition"], event["offset"]): event["value"] for event in done}
    assert len(acknowledged) == len(done), "each at a place of its own"

    seen = {}
    while not acknowledged.keys() <= seen.keys():
        got = consumer.read(5)
        assert consumer.process.poll() is None, consumer.said()
        seen |= {(e["partition"], e["offset"]): e["value"] for e in map(json.loads, got) if e["name"] == "record_data"}
    consumer.terminate()
    assert {place: value for place, value in seen.items() if place in acknowledged} == acknowledged
    assert {value for place, value in seen.items() if place not in acknowledged} <= unknown


@pytest.mark.conformance
def test_java_admin_tools_see_topics_and_groups(start_broker):
    broker = start_broker(topics={"seen": PARTITIONS})
    where = ["--bootstrap-server", broker.bootstrap]

    created = java_tool(TOPIC_COMMAND, *where, "--create", "--topic", "made", "--partitions", "5")
    assert created.returncode == 0, created.stderr
    listed = java_tool(TOPIC_COMMAND, *where, "--list").stdout.split()
    assert {"made", "seen"} <= set(listed)
    described = java_tool(TOPIC_COMMAND, *where, "--describe", "--topic", "made").stdout
    assert "PartitionCount: 5" in described
    assert described.count("Leader: ") == 5
    twice = java_tool(TOPIC_COMMAND, *where, "--create", "--topic", "made")
    assert twice.returncode != 0
    assert "already exists" in twice.stdout + twice.stderr

    producer = ConfluentProducer(broker.bootstrap, "seen")
    written = values("seen", 60)
    producer.send(written)
    consumer = ConfluentConsumer(broker.bootstrap, "seen", "seen-group")
    consumer.take(written)
    consumer.commit()
    consumer.close()
    assert "seen-group" in java_tool(CONSUMER_GROUP_COMMAND, *where, "--list").stdout.split()
    table = java_tool(CONSUMER_GROUP_COMMAND, *where, "--describe", "--group", "seen-group").stdout
    rows = [line.split() for line in table.splitlines() if line.startswith("seen-group")]
    assert len(rows) == PARTITIONS
    assert sum(int(row[3]) for row in rows) == 60
    assert all(row[5] == "0" for row in rows), "no lag"

    deleted = java_tool(TOPIC_COMMAND, *where, "--delete", "--topic", "made")
    assert deleted.returncode == 0, deleted.stderr
    assert "made" not in java_tool(TOPIC_COMMAND, *where, "--list").stdout.split()

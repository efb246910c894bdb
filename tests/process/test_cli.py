"""The command line against a real broker, as separate processes like a person starts them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
import uuid
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from millstream.testing.stem import run_command
from waits import PATIENCE_S, until

pytestmark = pytest.mark.process

COMMAND = [sys.executable, "-m", "millstream.cli"]


@contextlib.contextmanager
def started(command):
    """A process with its pipes, gone at the end also when an assertion failed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def topic():
    return f"cli-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def millstream(broker):
    """Runs one command to its end and returns it completed, with text output."""

    def run(*words, stdin="", code=0):
        done = run_at(broker.bootstrap, *words, stdin=stdin)
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stderr
        return done

    return run


def test_records_go_round_with_keys_headers_and_order(millstream, topic):
    millstream("topic", "create", topic, "--partitions", 3, "--config", "retention.ms=7d")
    lines = [f"key{number % 7}\tvalue {number}" for number in range(2000)]
    sent = millstream("produce", topic, "-K", "\\t", "-H", "from=test", "-z", "lz4", "--json", stdin="\n".join(lines))
    assert json.loads(sent.stdout)["records"] == 2000
    records = [json.loads(line) for line in millstream("consume", topic, "-e", "--json").stdout.splitlines()]
    assert sorted(f"{record['key']}\t{record['value']}" for record in records) == sorted(lines)
    assert records[0]["headers"] == [{"name": "from", "value": "test"}]
    for key in {record["key"] for record in records}:
        numbers = [int(record["value"].split()[1]) for record in records if record["key"] == key]
        assert numbers == sorted(numbers)
    described = json.loads(millstream("topic", "describe", topic, "--json").stdout)
    assert sum(partition["end_offset"] for partition in described["partitions"]) == 2000
    assert {"name": "retention.ms", "value": "604800000", "source": "topic"} in described["config"]


def test_a_topic_is_listed_altered_and_deleted(millstream, topic):
    millstream("topic", "create", topic)
    assert "already exists" in millstream("topic", "create", topic, code=1).stderr
    millstream("topic", "alter", topic, "--partitions", 4, "--config", "max.message.bytes=2000")
    listed = json.loads(millstream("topic", "list", "--json").stdout)
    assert {"topic": topic, "partitions": 4, "replication_factor": 1} in listed
    assert "larger than topic" in millstream("produce", topic, stdin="x" * 5000, code=1).stderr
    refused = millstream("topic", "alter", topic, "--config", "no.such.property=1", code=1)
    assert refused.stderr.count("\n") == 1
    assert "nothing was deleted, --execute does it" in millstream("topic", "delete", topic).stderr
    millstream("topic", "delete", topic, "--execute")
    assert f"there is no topic '{topic}'" in millstream("topic", "describe", topic, code=1).stderr
    assert f"there is no topic '{topic}'" in millstream("consume", topic, code=1).stderr


def test_a_topic_without_a_name_is_refused_in_words(millstream):
    for words in (("topic", "describe", ""), ("consume", ""), ("topic", "trim", "", "--before", "end")):
        assert "fault in millstream" not in millstream(*words, code=2).stderr


def test_consume_begins_at_offsets_and_times(millstream, topic):
    millstream("topic", "create", topic, "--config", "retention.ms=-1")  # the records are years old
    stamped = [
        json.dumps({"value": str(number), "timestamp": 1_700_000_000_000 + number * 60_000}) for number in range(10)
    ]
    millstream("produce", topic, "--format", "json", stdin="\n".join(stamped))
    assert millstream("consume", topic, "--from", 7, "-e").stdout.split() == ["7", "8", "9"]
    assert millstream("consume", topic, "--from", "2023-11-14T22:18:20+00:00", "-e").stdout.split() == [
        "5",
        "6",
        "7",
        "8",
        "9",
    ]
    assert millstream("consume", topic, "--from", "end", "-e").stdout == ""
    assert (
        millstream("consume", topic, "--count", 2, "--format", "{partition}:{offset} {value}").stdout
        == "0:0 0\n0:1 1\n"
    )


def test_a_group_resumes_and_is_reset_only_when_idle(millstream, broker, topic):
    group = f"g-{topic}"
    millstream("topic", "create", topic)
    millstream("produce", topic, stdin="a\nb\nc\n")
    assert millstream("consume", topic, "--group", group, "--count", 2).stdout.split() == ["a", "b"]
    command = [*COMMAND, "consume", topic, "--group", group, "--bootstrap", broker.bootstrap]
    with started(command) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "c\n"
        refused = millstream("group", "reset", group, "--to", "earliest", "--all-topics", "--execute", code=1)
        assert "is active with 1 member" in refused.stderr
        active = json.loads(millstream("group", "describe", group, "--json").stdout)
        assert (active["state"], active["members"]) == ("stable", 1)
        reader.send_signal(signal.SIGTERM)
        rest, complaints = reader.communicate(timeout=PATIENCE_S)
        assert (reader.returncode, rest, complaints) == (0, "", "")
    idle = json.loads(millstream("group", "describe", group, "--json").stdout)
    assert (idle["state"], idle["lag"], idle["partitions"][0]["committed"]) == ("empty", 0, 3)
    assert group in {entry["group"] for entry in json.loads(millstream("group", "list", "--json").stdout)}
    planned = json.loads(millstream("group", "reset", group, "--to", 1, "--topic", topic, "--json").stdout)
    assert planned["partitions"] == [{"topic": topic, "partition": 0, "committed": 3, "new": 1}]
    assert millstream("consume", topic, "--group", group, "-e").stdout == ""
    millstream("group", "reset", group, "--to", 1, "--topic", topic, "--execute")
    assert millstream("consume", topic, "--group", group, "-e").stdout.split() == ["b", "c"]


def test_consume_leaves_a_broker_that_answers_no_more(broker_factory, topic):
    broker = broker_factory()
    done_at(broker.bootstrap, "produce", topic, stdin="a\n")
    words = ["consume", topic, "--group", "g", "--timeout", "2", "--bootstrap", broker.bootstrap]
    with started([*COMMAND, *words]) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "a\n"
        os.killpg(broker.pid, signal.SIGSTOP)
        try:
            reader.send_signal(signal.SIGINT)
            _, complaints = reader.communicate(timeout=PATIENCE_S)
        finally:
            os.killpg(broker.pid, signal.SIGCONT)
    assert reader.returncode == 1
    assert "group 'g': the last printed records may not be committed" in complaints
    assert complaints.count("\n") == 1


def test_consume_says_that_the_broker_is_gone_and_goes_on_when_it_is_back(broker_factory):
    broker = broker_factory(topics={"t": 1})
    done_at(broker.bootstrap, "produce", "t", stdin="a\n")
    with started([*COMMAND, "consume", "t", "--bootstrap", broker.bootstrap]) as reader:
        assert reader.stdout is not None and reader.stderr is not None
        assert reader.stdout.readline() == "a\n"
        broker.kill()
        assert reader.stderr.readline() == (
            f"no broker answers at {broker.bootstrap}; waiting until one does, Ctrl-C ends this\n"
        )
        broker.start()
        assert reader.stderr.readline() == f"a broker answers at {broker.bootstrap} again\n"
        done_at(broker.bootstrap, "produce", "t", stdin="b\n")
        assert reader.stdout.readline() == "b\n"
        reader.send_signal(signal.SIGINT)
        assert reader.communicate(timeout=PATIENCE_S) == ("", "")
        assert reader.returncode == 0


def test_consume_without_a_group_leaves_nothing_at_the_broker(broker_factory):
    broker = broker_factory(topics={"t": 2})
    run = partial(done_at, broker.bootstrap)
    run("produce", "t", stdin="a\n")
    assert run("consume", "t", "-e") == "a\n"
    assert run("consume", "t", "-e", "--from", "end", "--isolation", "read_uncommitted") == ""
    assert [entry["topic"] for entry in json.loads(run("topic", "list", "--internal", "--json"))] == ["t"]
    assert json.loads(run("group", "list", "--json")) == []


def test_a_consumer_group_is_described_with_its_epochs(millstream, broker, topic):
    from confluent_kafka import Consumer

    group = f"g-{topic}"
    millstream("topic", "create", topic)
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": "consumer"})
    member.subscribe([topic])
    while not member.assignment():
        member.poll(0.1)
    described = json.loads(millstream("group", "describe", group, "--json").stdout)
    assert (described["type"], described["state"], described["assignor"]) == ("consumer", "stable", "uniform")
    assert (described["epoch"], described["assignment_epoch"]) == (2, 2)
    assert list(described["member_epochs"].values()) == [2]
    assert [(place["topic"], place["partition"]) for place in described["partitions"]] == [(topic, 0)]
    shown = millstream("group", "describe", group).stdout
    assert "type              consumer" in shown
    assert "assignment epoch  2" in shown
    member.close()


def test_groups_are_listed_by_state_and_deleted(millstream, topic):
    group = f"g-{topic}"
    millstream("topic", "create", topic)
    millstream("group", "reset", group, "--to", "end", "--topic", topic, "--execute")
    for state, there in (("empty", True), ("stable", False)):
        listed = json.loads(millstream("group", "list", "--state", state, "--type", "classic", "--json").stdout)
        assert (group in {entry["group"] for entry in listed}) == there
    assert millstream("group", "delete", group).stderr == f"deleted group '{group}'\n"
    assert f"there is no group '{group}'" in millstream("group", "delete", group, code=1).stderr


def test_a_running_broker_tells_its_settings(millstream):
    settings = json.loads(millstream("config", "list", "--running", "--json").stdout)
    assert {"num.partitions", "log.retention.hours"} <= {entry["name"] for entry in settings}


def test_the_oldest_records_are_trimmed_at_a_position(millstream, topic):
    millstream("topic", "create", topic, "--partitions", 2)
    for partition in (0, 1):
        millstream("produce", topic, "-p", partition, stdin="\n".join(map(str, range(10))))
    trimmed = json.loads(millstream("topic", "trim", topic, "--before", 4, "-p", 1, "--execute", "--json").stdout)
    assert trimmed == [{"topic": topic, "partition": 1, "start_offset": 4}]
    described = json.loads(millstream("topic", "describe", topic, "--json").stdout)
    assert [partition["start_offset"] for partition in described["partitions"]] == [0, 4]
    millstream("topic", "trim", topic, "--before", "end", "--execute")
    assert millstream("consume", topic, "-e").stdout == ""


def test_a_running_broker_changes_its_mind_and_back(millstream):
    def running():
        listed = json.loads(millstream("config", "list", "--running", "--json").stdout)
        return {entry["name"]: (entry["value"], entry["source"]) for entry in listed}["log.retention.ms"]

    before = running()
    millstream("config", "set", "log.retention.ms=7d")
    assert running() == ("604800000", "changed while running")
    millstream("config", "set", "--unset", "log.retention.ms")
    assert running() == before


def test_a_full_disk_is_said_by_every_command_that_meets_it(broker_factory):
    broker = broker_factory(topics=["t"], shards=1)
    broker.stop()
    broker.settings |= {"storage.reserve.bytes": 1 << 60}
    broker.start()
    run_at(broker.bootstrap, "produce", "t", stdin="the free space is looked at after an append\n")
    until(lambda: not accepts_writes(broker), "the broker never says that its disk is full")
    sent = run_at(broker.bootstrap, "produce", "t", "--timeout", "2", stdin="a\n")
    assert sent.returncode == 1
    assert "the disk of broker 0 is full, and producers are refused there until there is space" in sent.stderr
    shown = run_at(broker.bootstrap, "status")
    assert shown.returncode == 1
    assert "the disk of broker 0 is full" in shown.stderr
    assert json.loads(run_at(broker.bootstrap, "status", "--json").stdout)["full_disks"] == [0]
    health = run_at(broker.bootstrap, "cluster", "health")
    assert (health.returncode, "the disk of broker 0 is full" in health.stdout) == (1, True)
    with urllib.request.urlopen(broker.http, timeout=60) as page:
        assert "The disk is full: producers are refused" in page.read().decode()


def run_at(address, *words, stdin=""):
    """One command for the broker at an address, run to its end."""
    return run_command(*words, "--bootstrap", address, stdin=stdin)


def done_at(address, *words, stdin=""):
    """What one command prints that must succeed."""
    done = run_at(address, *words, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def accepts_writes(broker):
    with urllib.request.urlopen(f"{broker.http}/healthz", timeout=60) as answer:
        return json.load(answer)["accepts_writes"]


def test_another_port_of_the_broker_is_named(broker):
    http = broker.http.removeprefix("http://")
    for words in (["topic", "list"], ["cluster", "health"], ["status"], ["consume", "t"], ["produce", "t"]):
        done = run_at(http, *words, "--timeout", "3600")
        assert done.returncode == 1
        assert f"{http} answers HTTP, not Kafka's protocol; give the broker's Kafka port" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = run_at(address, "topic", "list", "--timeout", "2")
    assert done.returncode == 1
    assert f"{address} takes connections, but no broker answers" in done.stderr


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_interrupting_top_is_how_it_ends(broker, words):
    with started([*COMMAND, "top", "--interval", "0.2", "--bootstrap", broker.bootstrap, *words]) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, "")


def test_values_of_a_schema_registry_are_decoded(broker, millstream, topic, registry_of):
    schema = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"item","type":"string"}]}'
    registry = registry_of(broker.http)
    serialize = AvroSerializer(registry, schema)
    context = SerializationContext(topic, MessageField.VALUE)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, item in enumerate(("tea", "größe")):
        producer.produce(topic, serialize({"id": number, "item": item}, context), key="k", partition=0)
    producer.produce(topic, b"plain", partition=0)
    assert producer.flush(60) == 0
    words = ("consume", topic, "-e", "--decode", "--registry", broker.http)
    shown = millstream(*words)
    first, second, third = shown.stdout.splitlines()
    assert [json.loads(first), json.loads(second)] == [{"id": 0, "item": "tea"}, {"id": 1, "item": "größe"}]
    assert third == "plain"
    assert f"{topic}, partition 0, offset 2: the value begins with" in shown.stderr
    assert json.loads(millstream(*words, "--json").stdout.splitlines()[0])["value"] == {"id": 0, "item": "tea"}
    other = f"{topic}-plain"
    millstream("produce", other, stdin="as it is\n")
    shown = millstream("consume", other, "-e", "--decode", "--registry", broker.http)
    assert shown.stdout == "as it is\n"
    assert f"values of topic '{other}' are shown as they are" in shown.stderr


def test_a_group_reads_the_topics_of_a_pattern(millstream, topic):
    for number in range(2):
        millstream("topic", "create", f"{topic}-{number}")
        millstream("produce", f"{topic}-{number}", stdin=f"{number}\n")
    shown = millstream("consume", "--pattern", f"{topic}-.", "--group", f"g-{topic}", "--count", 2)
    assert sorted(shown.stdout.split()) == ["0", "1"]

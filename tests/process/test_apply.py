"""``millstream apply`` makes a cluster what a file says; again it changes nothing; it finishes what a kill left."""

import json
import os
import signal
import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient

from millstream.cli.__main__ import main
from millstream.testing.process import Broker

pytestmark = pytest.mark.process

FILE = """\
topics:
  orders: {partitions: 3, configs: {retention.ms: 7d, cleanup.policy: compact}}
  audit: {}
users:
  alice: {password_file: alice.word}
acls:
  - {principal: "User:alice", allow: [read, describe], topic: orders}
  - {principal: "User:*", deny: [write], topic: aud, prefixed: true}
  - {principal: "User:alice", allow: [describe], cluster: true}
quotas:
  - {user: alice, producer_byte_rate: 1048576, request_percentage: 50}
  - {client_id: <default>, consumer_byte_rate: 2000000}
schemas:
  orders-value: {file: orders.avsc, compatibility: FULL}
"""
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def secured():
    settings = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    settings |= {"super.users": "User:ANONYMOUS"}
    with Broker(None, settings, shards=1) as broker:
        yield broker


@pytest.fixture
def file(tmp_path):
    (tmp_path / "alice.word").write_text("word-of-alice-77\n")
    (tmp_path / "orders.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "all.yaml").write_text(FILE)
    return tmp_path / "all.yaml"


def command(broker, file, *more):
    return ["apply", "-f", str(file), "--bootstrap", broker.bootstrap, "--registry", broker.http, "--json", *more]


def run(broker, file, capfd, *more):
    capfd.readouterr()
    code = main(command(broker, file, *more))
    out, err = capfd.readouterr()
    # Lines with % are of a client that another test has left, and whose broker is away.
    said = [line for line in err.splitlines() if not line.startswith("%")]
    return code, json.loads(out or "\n".join(said))


def test_a_file_is_applied_once_and_then_holds(secured, file, capfd):
    code, planned = run(secured, file, capfd, "--dry-run")
    assert (code, planned.get("done")) == (0, 0), planned
    assert "orders" not in AdminClient({"bootstrap.servers": secured.bootstrap}).list_topics(timeout=60).topics
    code, done = run(secured, file, capfd)
    assert (code, done["steps"], done["done"]) == (0, planned["steps"], len(planned["steps"]))
    assert len(done["steps"]) == 11
    assert "word-of-alice" not in json.dumps(done)
    assert run(secured, file, capfd) == (0, {"dry_run": False, "done": 0, "steps": []})
    topics = AdminClient({"bootstrap.servers": secured.bootstrap}).list_topics(timeout=60).topics
    assert len(topics["orders"].partitions) == 3

    file.write_text(FILE.replace("partitions: 3", "partitions: 4").replace("7d", "8d").replace("50}", "60}"))
    code, done = run(secured, file, capfd)
    assert [step["details"] for step in done["steps"]] == [
        ["partitions: 3 -> 4"],
        ["retention.ms: 604800000 -> 691200000"],
        ["request_percentage: 50 -> 60"],
    ]

    for text, words in (
        (FILE, f"{file}:2:24: topic orders has 4 partitions, and partitions are only ever added"),
        (FILE.replace("audit: {}", "audit: {replication: 3}"), "topic audit has 1 replicas"),
    ):
        file.write_text(text)
        code, said = run(secured, file, capfd)
        assert code == 2
        assert words in said["error"]

    file.write_text("topics: {orders: {}}\nacls: []\nquotas: []\n")
    assert run(secured, file, capfd)[1]["steps"] == []
    code, done = run(secured, file, capfd, "--prune")
    assert code == 0
    assert sorted({step["what"].split()[0] for step in done["steps"]}) == ["quota", "right", "topic"]
    assert {step["what"] for step in done["steps"] if step["what"].startswith("topic")} == {
        "topic orders",
        "topic audit",
    }
    assert run(secured, file, capfd, "--prune")[1]["steps"] == []
    assert main(["user", "describe", "alice", "--bootstrap", secured.bootstrap]) == 0  # a kind that the file lacks
    topics = AdminClient({"bootstrap.servers": secured.bootstrap}).list_topics(timeout=60).topics
    assert "orders" in topics
    assert "audit" not in topics


def test_a_schema_that_does_not_fit_changes_nothing(secured, file, capfd):
    file.write_text("topics: {later: {}}\nschemas:\n  fit-value: {file: orders.avsc, compatibility: FULL}\n")
    assert run(secured, file, capfd)[0] == 0
    other = {**AVRO, "fields": [{"name": "id", "type": "string"}]}
    (file.parent / "orders.avsc").write_text(json.dumps(other))
    file.write_text(file.read_text().replace("later", "not-made"))
    code, said = run(secured, file, capfd)
    assert code == 2
    assert f"{file}:3:21: does not fit fit-value" in said["error"]
    assert "not-made" not in AdminClient({"bootstrap.servers": secured.bootstrap}).list_topics(timeout=60).topics


def test_what_a_killed_run_left_is_finished_by_the_next(secured, tmp_path, capfd):
    many = tmp_path / "many.yaml"
    many.write_text("topics:\n" + "".join(f"  many-{number}: {{}}\n" for number in range(12)))
    words = [sys.executable, "-m", "millstream.cli", *command(secured, many)]
    words.remove("--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as killed:
        assert killed.stdout.readline() == b"+ topic many-0\n"
        killed.send_signal(signal.SIGKILL)
    left = len(run(secured, many, capfd, "--dry-run")[1]["steps"])
    assert left < 12
    assert left - 1 <= run(secured, many, capfd)[1]["done"] <= left, "the killed run had one request on its way at most"
    assert run(secured, many, capfd)[1]["done"] == 0


def at_once(broker, file, *more):
    """Two runs; how many steps each has done."""
    words = [sys.executable, "-m", "millstream.cli", *command(broker, file, *more)]
    runs = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    return [json.loads(out)["done"] for out, _ in said]


def test_runs_that_overlap_all_end_well(secured, file, capfd):
    more = "".join(f"  many-{number}: {{partitions: 2}}\n" for number in range(20))
    file.write_text(FILE.replace("topics:\n", "topics:\n" + more))
    assert sum(at_once(secured, file)) >= 30
    assert run(secured, file, capfd)[1]["done"] == 0
    file.write_text("topics: {audit: {}}\nusers: {}\nacls: []\n")
    at_once(secured, file, "--prune")
    assert run(secured, file, capfd, "--prune")[1]["done"] == 0

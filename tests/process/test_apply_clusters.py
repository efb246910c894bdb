"""One file makes three brokers with logins and TLS what it says, also if a broker dies in the middle, and only once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from console_support import Secured, secured

from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(900)]

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
FILE = """\
topics:
{topics}
users:
  alice: {{password_file: alice.word}}
  bob: {{password_file: alice.word, mechanism: SCRAM-SHA-256}}
acls:
  - {{principal: "User:alice", allow: [read, describe], topic: made-, prefixed: true}}
  - {{principal: "User:bob", deny: [write], topic: made-1}}
quotas:
  - {{user: alice, producer_byte_rate: 1048576, request_percentage: 50}}
  - {{client_id: <default>, consumer_byte_rate: 2000000}}
schemas:
  made-1-value: {{file: order.avsc, compatibility: FULL}}
"""
TOPICS = 12


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as started:
        yield started


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "alice.word").write_text("word-of-alice-77\n")
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    topics = "".join(f"  made-{number}: {{partitions: 2, replication: 3}}\n" for number in range(TOPICS))
    (tmp_path / "all.yaml").write_text(FILE.format(topics=topics.rstrip("\n")))
    return tmp_path / "all.yaml"


def words(found: Secured, file: Path, number: int, *more: str) -> list[str]:
    """The command, which talks to one broker as the administrator."""
    about = json.loads((found.brokers[number].data_dir / "broker.json").read_text())
    properties = file.parent / "client.properties"
    ours = ("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location")
    properties.write_text("".join(f"{name}={found.client[name]}\n" for name in ours))
    properties.chmod(0o600)
    command = [
        sys.executable,
        "-m",
        "millstream.cli",
        "apply",
        "-f",
        str(file),
        "--bootstrap",
        found.brokers[number].bootstrap,
    ]
    return [*command, "--registry", about["http"], "--command-config", str(properties), *more]


def run(found: Secured, file: Path, number: int, *more: str) -> tuple[int, Any]:
    done = subprocess.run(words(found, file, number, "--json", *more), capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout or done.stderr)


def test_a_file_is_applied_though_a_broker_dies_and_then_holds(found: Secured, file: Path) -> None:
    planned = run(found, file, 1, "--dry-run")[1]
    assert len(planned["steps"]) > TOPICS
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    victim = found.brokers[0]
    with subprocess.Popen(
        words(found, file, 1), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as applying:
        assert applying.stdout is not None
        while b"topic made-1\n" not in applying.stdout.readline():
            assert applying.poll() is None
        victim.signal_all(signal.SIGKILL)
        applying.stdout.read()  # it ends, or says why not
    victim.kill()
    victim.start()

    def finished() -> bool:
        """What the death of the controller has left is done by the next run."""
        code, said = run(found, file, 1)
        assert code in (0, 1, 3), said
        return code == 0

    until(finished, "a run that ends well")
    for number in range(3):
        until(lambda number=number: run(found, file, number, "--dry-run")[1].get("steps") == [], f"broker {number}")
    assert run(found, file, 2) == (0, {"dry_run": False, "done": 0, "steps": []})
    topics = AdminClient(found.client).list_topics(timeout=60).topics
    for number in range(TOPICS):
        partitions = topics[f"made-{number}"].partitions
        assert [len(partition.replicas) for partition in partitions.values()] == [3, 3]


def test_what_the_file_lacks_is_pruned_everywhere(found: Secured, file: Path) -> None:
    until(lambda: run(found, file, 0)[0] == 0, "the file is applied")
    file.write_text("topics: {orders: {}, secrets: {}}\nusers: {admin: {password_file: admin.word}}\nquotas: []\n")
    (file.parent / "admin.word").write_text(found.words["admin"])
    code, done = run(found, file, 2, "--prune")
    assert code == 0, done
    gone = {step["what"] for step in done["steps"]}
    assert {f"topic made-{number}" for number in range(TOPICS)} <= gone
    assert {"user alice", "user bob"} <= gone

    def pruned(number: int) -> bool:
        return run(found, file, number, "--prune", "--dry-run")[1].get("steps") == []

    for number in range(3):
        until(lambda number=number: pruned(number), f"broker {number} has no more than the file")

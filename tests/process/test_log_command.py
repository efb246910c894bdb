"""``millstream log`` on what a real broker left: whole after a kill, damage found where it was done."""

import json
import os
import shutil

import pytest
from confluent_kafka import Producer

from millstream.testing import Broker
from millstream.testing.stem import run_command

pytestmark = pytest.mark.process


def log_command(*words, code=0):
    done = run_command("log", *words)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    return done


def send(broker, codec, count):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "enable.idempotence": True})
    for number in range(count):
        producer.produce("orders", f"{codec} {number} " * 20, f"key {number % 100}", partition=number % 2)
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Of a broker that was killed under way and stopped in order after its recovery."""
    directory = tmp_path_factory.mktemp("data")
    settings = {"log.segment.bytes": "1MiB"}
    for ending, codec in (("kill", "none"), ("stop", "gzip")):
        topics = {"orders": 2} if ending == "kill" else None
        broker = Broker(data_dir=directory, topics=topics, settings=settings, shards=2)
        broker.start()
        try:
            send(broker, codec, 5000)
            refused = log_command("verify", "--data", directory, code=1)
            assert "--running" in refused.stderr
            log_command("verify", "--data", directory, "--running")
            if ending == "stop":
                assert broker.stop() == 0
        finally:
            broker.kill()
        if ending == "kill":
            found = json.loads(log_command("verify", "--data", directory, "--json").stdout)
            assert found["ok"]
            assert found["wal_frames"] > 0
    return directory


@pytest.fixture
def directory(left, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(left, tmp_path / "data")


def test_files_are_verified_dumped_and_their_damage_is_found(directory):
    found = json.loads(log_command("verify", "--data", directory, "--topic", "orders", "--deep", "--json").stdout)
    assert (found["findings"], found["records"], found["logs"]) == ([], 10_000, 2)
    assert "damaged                   nothing" in log_command("verify", "--data", directory).stdout
    lines = log_command("dump", "--data", directory, "-t", "orders", "-p", 1, "--records", "--json").stdout.splitlines()
    documents = [json.loads(line) for line in lines]
    records = [one for one in documents if one["kind"] == "record"]
    assert [one["offset"] for one in records] == list(range(5000))
    assert records[0]["value"].startswith("none 1 ")
    assert records[-1]["value"].startswith("gzip 4999 ")
    segments = [one["file"] for one in documents if one["kind"] == "segment"]
    batches = [one for one in documents if one["kind"] == "batch"]
    second = next(one for one in batches[1:] if one["position"])
    assert second["base_offset"] > 0
    with open(segments[0], "r+b") as file:
        file.seek(second["position"] + 100)
        byte = file.read(1)
        file.seek(second["position"] + 100)
        file.write(bytes([byte[0] ^ 1]))
    damaged = json.loads(log_command("verify", "--data", directory, "--json", code=1).stdout)
    assert [(one["log"], one["offset"], one["byte"]) for one in damaged["findings"]] == [
        ("orders/1", second["base_offset"], second["position"])
    ]
    shown = log_command("dump", segments[0], "--limit", 3).stdout
    assert shown.count("crc_matches=no") == 1


def test_every_kind_of_file_can_be_shown(directory):
    files = {
        os.path.splitext(name)[1] or name: os.path.join(root, name)
        for root, _, names in os.walk(directory)
        for name in names
    }
    shown = set()
    for kind in (".index", ".wal", "epochs", "state"):
        lines = log_command("dump", files[kind], "--limit", 2, "--json").stdout.splitlines()
        shown.add(json.loads(lines[0])["kind"])
    assert shown == {"index", "wal", "epochs", "state"}


def test_what_is_no_data_directory_is_refused_with_the_remedy(tmp_path):
    assert "millstream start --data" in log_command("verify", "--data", tmp_path, code=1).stderr
    (tmp_path / "notes.txt").write_text("hello")
    assert "is no file of a log" in log_command("dump", tmp_path / "notes.txt", code=1).stderr
    assert "--data" in log_command("dump", code=2).stderr

"""``millstream job scrub`` on a real broker: nothing is wrong, then what was broken is named."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from waits import until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]


def flip(path, at):
    with open(path, "rb+") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_sound_topics_have_no_finding_and_damage_is_named_after_a_kill(broker_factory, tmp_path):
    settings = {
        "log.retention.check.interval.ms": 100,
        "checkpoint.ms": 500,
        "objects.url": f"file://{tmp_path}/bucket",
    }
    broker = broker_factory(settings=settings)
    tiered = {"storage.mode": "tiered", "retention.ms": "-1", "retention.local.target.bytes": "120000"}
    small = {"internal.segment.bytes": "50000"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic("old", 1, config={**tiered, **small}), NewTopic("local", 1, config=small)]
    for done in admin.create_topics(topics).values():
        done.result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 20, "linger.ms": 2})
    for number in range(2000):
        for name in ("old", "local"):
            producer.produce(name, b"%d:" % number + b"x" * 500)
        producer.poll(0)
    assert producer.flush(60) == 0

    def listed(name):
        with urllib.request.urlopen(f"{broker.http}/v1/topics/{name}/segments", timeout=60) as answer:
            return json.load(answer)["partitions"][0]

    bucket = tmp_path / "bucket"
    until(lambda: listed("old")["archived_end_offset"] > 1500, "the topic was not archived")
    until(lambda: len(listed("local")["segments"]) > 10, "segments were not closed")
    until(lambda: list(bucket.rglob("manifest")), "no manifest object")

    state = tmp_path / "jobs"
    command = [sys.executable, "-m", "millstream.cli", "job", "scrub", "old", "local", "--cores", "1"]
    command += ["--bootstrap", broker.bootstrap, "--state", str(state), "--id", "j", "--json"]

    def scrub(code, words=command):
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        assert ended.returncode == code, ended.stderr
        return json.loads(ended.stdout) if ended.stdout else ended.stderr

    checked = state / "j" / "checked.jsonl"
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as run:
        until(lambda: run.poll() is not None or (checked.exists() and checked.stat().st_size), "nothing was read")
        assert run.poll() is None
        os.killpg(run.pid, 9)
    with open(checked, "ab") as file:
        file.write(b'{"piece":')  # torn by the crash
    other = [*command[:5], "local", *command[7:]]
    assert "give this one another --id" in scrub(1, other)
    sound = scrub(0)
    assert sound["findings"] == []
    assert sound["before"] > 0
    assert sound["objects"] + sound["files"] > 0
    assert not checked.exists()

    objects = sorted(bucket.rglob("*.segment"))
    flip(objects[0], 3000)
    objects[1].unlink()
    files = listed("local")["segments"]
    flip(files[0]["path"], 2000)
    os.truncate(files[2]["path"], files[2]["bytes"] - 5)
    broken = scrub(1)
    assert broken["before"] == 0
    assert broken["objects"] >= len(objects)
    named = {(one["kind"], one["topic"], os.path.basename(one["place"])) for one in broken["findings"]}
    assert named == {
        ("damaged", "old", objects[0].name),
        ("missing", "old", objects[1].name),
        ("damaged", "local", os.path.basename(files[0]["path"])),
        ("damaged", "local", os.path.basename(files[2]["path"])),
    }

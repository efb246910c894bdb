"""A tiered topic on a real broker: history from the bucket, recent segments from files, the tail from the broker."""

import json
import subprocess
import sys
import urllib.request

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import spark as ms
from waits import moment, until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]


def test_one_table_has_rows_of_the_bucket_of_files_and_of_the_tail(spark, broker_factory, tmp_path):
    settings = {
        "log.retention.check.interval.ms": 100,
        "checkpoint.ms": 500,
        "objects.url": f"file://{tmp_path}/bucket",
    }
    broker = broker_factory(settings=settings)
    config = {
        "storage.mode": "tiered",
        "internal.segment.bytes": "50000",
        "retention.ms": "-1",
        "retention.local.target.bytes": "120000",
        "file.delete.delay.ms": "100",
    }
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1, config=config)])["t"].result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 20, "linger.ms": 2})
    sent = [b"%d:" % number + b"x" * 500 for number in range(2000)]
    for value in sent:
        producer.produce("t", value)
    assert producer.flush(60) == 0

    def tier():
        with urllib.request.urlopen(f"{broker.http}/v1/tiers?topic=t", timeout=60) as answer:
            return json.load(answer)["partitions"][0]

    manifest = tmp_path / "bucket"
    until(lambda: tier()["local_start_offset"] > 1000, "the local copies stayed")
    until(lambda: list(manifest.rglob("manifest")), "no manifest object")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "stats.dir": str(tmp_path / "stats")}
    rows = spark.read.format("millstream").options(**options).load().select("offset", "value").collect()
    assert [row.value for row in sorted(rows, key=lambda row: row.offset)] == sent
    stats = ms.read_stats(tmp_path / "stats")
    assert stats.archive_rows > 500
    assert stats.segment_rows > 50
    assert stats.tail_rows > 0
    assert stats.rows == 2000


@pytest.mark.slow
def test_a_shared_topic_is_read_from_objects_and_the_tail_from_the_broker_and_scrubbed(spark, broker_factory, tmp_path):
    """Ranges in objects of two partitions, ranges that are joined, and what is in no object yet: one table."""
    settings = {
        "log.retention.check.interval.ms": 200,
        "checkpoint.ms": 500,
        "objects.url": f"file://{tmp_path}/bucket",
        "shared.upload.interval.ms": 300,
        "shared.join.interval.ms": 1500,
    }
    broker = broker_factory(settings=settings)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {"storage.mode": "shared", "retention.ms": "-1"}
    admin.create_topics([NewTopic("t", 2, config=config)])["t"].result(60)
    sent = []

    def send(count):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 20, "linger.ms": 2})
        for number in range(len(sent), len(sent) + count):
            sent.append((number % 2, b"%d:" % number + b"x" * 500))
            producer.produce("t", sent[-1][1], partition=number % 2)
        assert producer.flush(60) == 0

    def tier():
        with urllib.request.urlopen(f"{broker.http}/v1/tiers?topic=t", timeout=60) as answer:
            return json.load(answer)["partitions"]

    def read(path, **more):
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "stats.dir": str(tmp_path / path)}
        rows = spark.read.format("millstream").options(**options, **more).load()
        found = sorted(rows.select("partition", "offset", "value").collect(), key=lambda row: row.offset)
        for partition in (0, 1):
            wanted = [value for place, value in sent if place == partition]
            assert [row.value for row in found if row.partition == partition] == wanted
        return ms.read_stats(tmp_path / path)

    for _ in range(3):
        send(400)
        moment(0.5)
    until(lambda: all(one["archived_end_offset"] >= 600 for one in tier()), "uploads stand still")
    own = tmp_path / "bucket" / "topics"
    until(lambda: len({one.parent for one in own.rglob("*.segment")}) == 2, "nothing was joined")
    send(400)
    until(lambda: all(one["archived_end_offset"] >= 800 for one in tier()), "uploads stand still")
    stats = read("both")
    assert stats.archive_rows > 1000
    assert stats.archive_rows + stats.tail_rows == 1600
    send(10)
    assert read("tail").rows == 1610
    done = subprocess.run(
        [sys.executable, "-m", "millstream.cli", "job", "scrub", "t", "--json", "--bootstrap", broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["objects"] >= 2
    assert not report["findings"]
    refused = subprocess.run(
        [sys.executable, "-m", "millstream.cli", "job", "merge", "t", "--bootstrap", broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=tmp_path,
    )
    assert refused.returncode == 1
    assert "is a shared topic" in refused.stderr

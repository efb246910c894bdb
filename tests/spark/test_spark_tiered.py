"""A tiered topic on a real broker: history from the bucket, recent segments from files, the tail from the broker."""

import json
import time
import urllib.request

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import spark as ms

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]


def wait_until(holds, what):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


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
    admin.create_topics([NewTopic("t", 1, config=config)])["t"].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 20, "linger.ms": 2})
    sent = [b"%d:" % number + b"x" * 500 for number in range(2000)]
    for value in sent:
        producer.produce("t", value)
    assert producer.flush(30) == 0

    def tier():
        with urllib.request.urlopen(f"{broker.http}/v1/tiers?topic=t", timeout=10) as answer:
            return json.load(answer)["partitions"][0]

    manifest = tmp_path / "bucket"
    wait_until(lambda: tier()["local_start_offset"] > 1000, "the local copies stayed")
    wait_until(lambda: list(manifest.rglob("manifest")), "no manifest object")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "stats.dir": str(tmp_path / "stats")}
    rows = spark.read.format("millstream").options(**options).load().select("offset", "value").collect()
    assert [row.value for row in sorted(rows, key=lambda row: row.offset)] == sent
    stats = ms.read_stats(tmp_path / "stats")
    assert stats.archive_rows > 500
    assert stats.segment_rows > 50
    assert stats.tail_rows > 0
    assert stats.rows == 2000

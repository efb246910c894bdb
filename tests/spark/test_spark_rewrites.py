"""``millstream job merge`` and ``reencode`` on a real broker: killed, resumed, and every record as it was."""

import json
import os
import subprocess
import sys
import time
import urllib.request
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.client import Cluster
from millstream.format.archive import manifest_key, segment_key
from millstream.format.manifest import ArchiveId, decode_manifest
from millstream.objects import open_store
from millstream.tiers.inspection import segments_of
from millstream.wire.batch import iter_batches, parse_header
from waits import until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]

RECORDS = 900


def produce(broker, topic):
    """Records of a plain, an idempotent and two transactional producers, one of whose transactions is aborted."""
    plain = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 2, "batch.num.messages": 20})
    safe = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "compression.type": "gzip"})
    whole = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-x"})
    whole.init_transactions(60)
    for begin in range(0, RECORDS, 30):
        maker = (plain, safe, whole)[begin // 30 % 3]
        if maker is whole:
            whole.begin_transaction()
        for number in range(begin, begin + 30):
            when = 1_700_000_000_000 + number
            maker.produce(topic, b"%06d " % number + b"value " * 90, b"k%d" % (number % 7), 0, timestamp=when)
        if maker is not whole:
            assert maker.flush(60) == 0
        elif begin % 180 == 60:
            whole.abort_transaction(60)
        else:
            whole.commit_transaction(60)


def consume(broker, topic, isolation="read_committed"):
    options = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "nobody",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": isolation,
        "check.crcs": True,
    }
    consumer, found, deadline = Consumer(options), [], time.monotonic() + 240
    consumer.assign([TopicPartition(topic, 0, 0)])
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            consumer.close()
            return found
        found.append((message.offset(), message.key(), message.value(), message.timestamp()))
    raise AssertionError(f"only {len(found)} records")


class Bucket:
    """The archive of one partition, as its objects say."""

    def __init__(self, url, bootstrap, topic):
        self.store = open_store(url)
        with Cluster(bootstrap) as cluster:
            self.owner = ArchiveId(uuid.UUID(bytes=cluster.metadata([topic]).topics[topic].topic_id), 0)

    def segments(self):
        key = manifest_key(self.owner)
        info = self.store.head(key)
        if info is None:
            return []
        return list(segments_of(self.store, decode_manifest(self.store.get(key, 0, info.size_bytes))))

    def headers(self):
        """What stays of each batch, and its codec."""
        found = []
        for one in self.segments():
            for batch in iter_batches(self.store.get(segment_key(self.owner, one), 0, one.size_bytes)):
                header = parse_header(batch)
                fixed = (
                    header.base_offset,
                    header.last_offset,
                    header.leader_epoch,
                    header.attributes & ~7,
                    header.base_timestamp,
                    header.max_timestamp,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.record_count,
                )
                found.append((fixed, header.codec))
        return found


class Jobs:
    """The commands of jobs on a broker, with their state."""

    def __init__(self, broker, state):
        self.bootstrap = broker.bootstrap
        self.state = state

    def _command(self, kind, options, topic):
        words = [sys.executable, "-m", "millstream.cli", "job", kind, topic, "--cores", "1", "--json"]
        return [*words, "--bootstrap", self.bootstrap, "--state", str(self.state), *options]

    def run(self, kind, *options, code=0, topic="old"):
        words = self._command(kind, options, topic)
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        assert ended.returncode == code, ended.stderr
        return json.loads(ended.stdout) if code == 0 else ended.stderr

    def kill_amid(self, kind, *options):
        journal = self.state / f"{kind}-old" / "replaced.jsonl"
        words = self._command(kind, options, "old")
        with subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL) as started:
            until(lambda: started.poll() is not None or (journal.exists() and journal.stat().st_size), "no start")
            assert started.poll() is None, "it came to its end before it was killed"
            os.killpg(started.pid, 9)
        with open(journal, "ab") as file:
            file.write(b'{"id":')  # torn by the crash


@pytest.fixture
def archived(broker_factory, tmp_path):
    """A broker with the archived topic ``old``, and its bucket."""
    url = f"file://{tmp_path}/bucket"
    settings = {"log.retention.check.interval.ms": 100, "checkpoint.ms": 500, "objects.url": url}
    broker = broker_factory(settings=settings)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {"storage.mode": "tiered", "retention.ms": "-1", "retention.local.target.ms": "0"}
    config |= {"internal.segment.bytes": "20000", "segment.upload.max.ms": "3000", "file.delete.delay.ms": "1000"}
    for done in admin.create_topics([NewTopic("old", 1, config=config), NewTopic("plain", 1)]).values():
        done.result(60)
    produce(broker, "old")

    def listed():
        with urllib.request.urlopen(f"{broker.http}/v1/topics/old/segments", timeout=60) as answer:
            return json.load(answer)["partitions"][0]

    until(lambda: listed()["archived_end_offset"] == listed()["high_watermark"], "the topic was not archived")
    bucket, end = Bucket(url, broker.bootstrap, "old"), listed()["high_watermark"]
    until(lambda: bucket.segments() and bucket.segments()[-1].end_offset == end, "no manifest")
    return broker, bucket


def test_segments_are_merged_and_reencoded_through_kills_and_every_record_stays(archived, tmp_path):
    broker, bucket = archived
    committed, everything = consume(broker, "old"), consume(broker, "old", "read_uncommitted")
    assert RECORDS > len(committed) > len(everything) * 0.7
    before, headers = bucket.segments(), bucket.headers()
    assert len(before) >= 8
    assert {codec for _, codec in headers} == {0, 1}
    jobs = Jobs(broker, tmp_path / "jobs")

    def unchanged():
        assert consume(broker, "old") == committed
        assert consume(broker, "old", "read_uncommitted") == everything
        assert [fixed for fixed, _ in bucket.headers()] == [fixed for fixed, _ in headers]

    assert "is not tiered" in jobs.run("merge", "--execute", code=1, topic="plain")
    assert "does not exist" in jobs.run("merge", code=1, topic="nothing")
    target = ("--target", "45000")
    planned = jobs.run("merge", *target)
    assert (planned["executed"], bucket.segments()) == (False, before)
    assert planned["partitions"][0]["groups"] >= 4
    jobs.kill_amid("merge", *target, "--execute")
    assert "give this one another --id" in jobs.run("merge", "--target", "1MiB", "--execute", code=1)
    merged = jobs.run("merge", *target, "--execute")
    assert (merged["left_out"], merged["manifests_late"]) == ({}, 0)
    unchanged()
    after = bucket.segments()
    assert len(after) < len(before)
    assert jobs.run("merge", *target)["partitions"][0]["groups"] == 0, "there is nothing left to join"

    jobs.kill_amid("reencode", "--codec", "zstd", "--execute")
    done = jobs.run("reencode", "--codec", "zstd", "--execute")
    assert (done["left_out"], done["left"]) == ({}, 0)
    unchanged()
    control = 0x20
    assert {codec for fixed, codec in bucket.headers() if not fixed[3] & control} == {4}
    assert {codec for fixed, codec in bucket.headers() if fixed[3] & control} == {0}
    again = jobs.run("reencode", "--codec", "zstd", "--execute")
    assert (again["groups"], again["unchanged"]) == (0, len(after))
    until(lambda: not any(bucket.store.head(segment_key(bucket.owner, one)) for one in before), "old objects stay")

    broker.kill()
    broker.start()
    unchanged()
    assert jobs.run("scrub")["findings"] == []

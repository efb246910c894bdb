"""Real file systems that are full, or that the kernel makes read-only under a running broker.

Full: producers are told so with an error that they retry, everybody else goes on, and space heals it without a
restart; where a file system copies what it overwrites, the write-ahead log waits too. Read-only, as ext4 becomes when
it meets an error: the broker stops with the reason and does not start before the file system is mended; what was
acknowledged is there then. Needs root, to mount.
"""

import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from crash_clients import QUIET
from fault_support import TOPIC, Scene

from millstream.testing import BrokerFailed
from millstream.testing.admin import create_topics

pytestmark = pytest.mark.process

MIB = 1 << 20
SHARDS = 2
RESERVE = {"storage.reserve.bytes": "6MiB"}


def mounted(path, *words):
    """Mounts something at a path; the one place that says that it is impossible here."""
    path.mkdir()
    done = subprocess.run(["mount", *words, path], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    return path


def formatted(image, size_mib, *command):
    """A file with a file system in it."""
    with image.open("wb") as file:
        file.truncate(size_mib * MIB)
    subprocess.run([*command, image], check=True)
    return image


@pytest.fixture
def small(tmp_path):
    """A file system of 64 MiB in memory."""
    path = mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=64m", "tmpfs")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def ext4(tmp_path):
    """A file system in a file, which goes read-only when it meets an error: (image, where it is mounted)."""
    image = formatted(tmp_path / "image", 160, "mkfs.ext4", "-q")
    path = mounted(tmp_path / "disk", "-o", "loop,errors=remount-ro", image)
    yield image, path
    subprocess.run(["umount", "-l", path], check=False)


@pytest.fixture
def btrfs(tmp_path):
    """A file system that writes elsewhere what is overwritten."""
    path = mounted(tmp_path / "disk", "-o", "loop", formatted(tmp_path / "image", 400, "mkfs.btrfs", "-q"))
    yield path
    subprocess.run(["umount", "-l", path], check=False)


def fill(path):
    """Leaves no byte free; returns the file that takes them."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for piece in (MIB, 4096, 1):
            try:
                while file.write(bytes(piece)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return ballast


def told(broker, topic):
    """What a producer that does not try again is told."""
    answers = []
    producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "message.send.max.retries": 0})
    producer.produce(topic, b"x", on_delivery=lambda error, message: answers.append(error))
    assert producer.flush(60) == 0
    return answers[0]


def read(broker, topic, records):
    """Reads so many records from the start, and commits that in a group."""
    consumer = Consumer(
        {**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "on a full disk", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    left = records
    while left:
        left -= sum(message.error() is None for message in consumer.consume(1000, 5))
    consumer.commit(offsets=[TopicPartition(topic, 0, records)], asynchronous=False)
    committed = consumer.committed([TopicPartition(topic, 0)], 60)[0].offset
    consumer.close()
    return committed


def test_a_full_disk_refuses_producers_lets_the_rest_go_on_and_heals_with_space(small, tmp_path):
    with Scene(tmp_path, random.Random(1), shards=SHARDS, data_dir=small / "data", settings=RESERVE) as scene:
        broker = scene.broker
        create_topics(broker.bootstrap, {"old": 1})
        producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        for _ in range(4000):
            producer.produce("old", bytes(1000))
        assert producer.flush(60) == 0
        scene.begin()
        ballast = fill(small)
        scene.until(lambda: scene.metric("millstream_storage_read_only") == SHARDS, "no shard takes more")
        assert all("disk full: producers are refused until there is space in" in line for line in scene.lines("ERROR"))
        assert told(broker, TOPIC).code() == KafkaError.KAFKA_STORAGE_ERROR  # which Kafka's clients try again
        assert scene.metric("millstream_storage_faults_total", kind="disk_full") > 0
        assert read(broker, "old", 4000) == 4000
        used = os.statvfs(small).f_bfree
        scene.workload.admin.delete_topics(["old"])["old"].result(60)
        scene.until(lambda: os.statvfs(small).f_bfree > used, "the deleted topic's space is free")
        ballast.unlink()
        scene.until(lambda: scene.metric("millstream_storage_read_only") == 0, "all shards take records again")
        assert scene.said("space again: producers are let in after", "INFO")
        scene.workload.wait_progress(100)
        broker.kill()
        broker.start()
        scene.ends_well()


@pytest.mark.slow
def test_the_command_says_that_the_disk_is_full_long_before_it_gives_up(tmp_path):
    more_than_any_disk = {"storage.reserve.bytes": str(1 << 50)}
    with Scene(tmp_path, random.Random(3), shards=1, settings=more_than_any_disk) as scene:
        create_topics(scene.broker.bootstrap, {"old": 1})
        scene.until(lambda: scene.metric("millstream_storage_read_only") == 1, "the shard takes no more")
        words = ["produce", "old", "--timeout", "200", "--bootstrap", scene.broker.bootstrap]
        with subprocess.Popen(
            [sys.executable, "-m", "millstream.cli", *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as command:
            try:
                command.stdin.write("a record\n")
                command.stdin.close()
                said = command.stderr.readline()
                assert command.poll() is None  # the record is still tried
                assert said.startswith("the disk of broker 0 is full")
            finally:
                command.kill()


def test_a_disk_that_producers_fill_is_healed_by_deleting_a_topic(small, tmp_path):
    with Scene(tmp_path, random.Random(2), shards=SHARDS, data_dir=small / "data", settings=RESERVE) as scene:
        create_topics(scene.broker.bootstrap, {"large": 1})
        scene.begin()
        producer = Producer({**QUIET, "bootstrap.servers": scene.broker.bootstrap, "message.timeout.ms": 120_000})
        for _ in range(3):  # more than there is room for
            while not scene.metric("millstream_storage_read_only"):
                for _ in range(500):
                    producer.produce("large", os.urandom(2000))
                producer.poll(0.05)
        scene.until(lambda: scene.metric("millstream_storage_read_only") == SHARDS, "no shard takes more")
        producer.purge()
        scene.workload.admin.delete_topics(["large"])["large"].result(60)
        scene.until(lambda: scene.metric("millstream_storage_read_only") == 0, "all shards take records again")
        scene.ends_well()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mkfs.btrfs") is None, reason="needs mkfs.btrfs (btrfs-progs)")
def test_a_disk_without_room_for_what_is_overwritten_stops_nobody_and_heals_with_space(btrfs, tmp_path):
    settings = {**RESERVE, "wal.bytes": "32MiB", "wal.file.bytes": "4MiB", "checkpoint.bytes": "8MiB"}
    with Scene(tmp_path, random.Random(4), data_dir=btrfs / "data", settings=settings) as scene:
        scene.begin()
        for _ in range(2):
            ballast = fill(btrfs)
            scene.until(lambda: scene.metric("millstream_storage_read_only") > 0, "a shard takes no more")
            assert told(scene.broker, TOPIC).code() == KafkaError.KAFKA_STORAGE_ERROR
            ballast.unlink()
            scene.until(lambda: scene.metric("millstream_storage_read_only") == 0, "all shards take records again")
            scene.workload.wait_progress(100)
        scene.broker.kill()
        scene.broker.start()
        scene.ends_well()


@pytest.mark.slow
def test_a_file_system_that_goes_read_only_stops_the_broker_and_nothing_is_lost_when_it_is_mended(ext4, tmp_path):
    image, path = ext4
    with Scene(tmp_path, random.Random(3), data_dir=path / "data", settings=RESERVE, mixed=True) as scene:
        scene.begin()
        device = Path(subprocess.run(["findmnt", "-no", "SOURCE", path], capture_output=True, text=True).stdout.strip())
        Path("/sys/fs/ext4", device.name, "trigger_fs_error").write_text("1")
        scene.stops(r"could not be \w+( \w+)*: (Read-only file system|Input/output error)")
        with pytest.raises(BrokerFailed, match="Read-only file system"):
            scene.broker.start()
        scene.broker.kill()
        subprocess.run(["umount", path], check=True)
        mended = subprocess.run(["e2fsck", "-fy", image], capture_output=True, text=True, check=False)
        assert mended.returncode in (0, 1), mended.stdout
        subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, path], check=True)
        scene.comes_back()

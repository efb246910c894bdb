"""The power fails for all brokers of a cluster at once, on real file systems: no acknowledged record is lost.

Each broker keeps its data in an ext4 file system of its own in a loop image. EXT4_IOC_SHUTDOWN without a flush of the
journal takes them away in the midst of the load: what was not synced is gone, where a kill alone leaves it in the page
cache. ``MILLSTREAM_POWER_LOSSES`` (default 3) is how often that happens.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import time

import pytest
from cluster_faults import TOPIC, compare_logs
from confluent_kafka.admin import AdminClient, NewTopic
from crash_clients import QUIET
from crash_workload import Workload

from millstream.testing.clusters import Cluster

TIMES = int(os.environ.get("MILLSTREAM_POWER_LOSSES", "3"))
PARTITIONS = 4
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(300 + 120 * TIMES),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mkfs.ext4") is None, reason="needs root and mkfs.ext4"),
]


class Disk:
    """An ext4 file system in an image, at a directory."""

    def __init__(self, image, at):
        self.image, self.at = image, at
        with image.open("wb") as made:
            made.truncate(1 << 30)
        run("mkfs.ext4", "-q", image)
        at.mkdir()
        self.mounted = False
        self.mount()

    def mount(self):
        run("mount", "-o", "loop", self.image, self.at)
        self.mounted = True

    def unmount(self):
        """Once the last process of the broker has ended: its lock, which tells that, can't be read any more."""
        limit = time.monotonic() + 60
        while self.mounted:
            done = call("umount", self.at)
            self.mounted = done.returncode != 0
            assert not self.mounted or time.monotonic() < limit, done.stderr

    def write_unsynced(self, name):
        """In a new file: ext4 itself syncs one that was cut to nothing and written again."""
        (self.at / name).write_bytes(bytes(4096))

    def has(self, name):
        path = self.at / name
        return path.exists() and path.stat().st_size > 0


def call(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


def run(*words):
    done = call(*words)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def fail_power(disks):
    """All at once: nothing is between the calls but the calls."""
    roots = [os.open(disk.at, os.O_RDONLY) for disk in disks]
    try:
        for root in roots:
            fcntl.ioctl(root, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
    finally:
        for root in roots:
            os.close(root)


@pytest.fixture
def disks(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    made = []
    try:
        for node in (1, 2, 3):
            made.append(Disk(tmp_path / f"{node}.img", data / str(node)))  # noqa: PERF401
        yield made
    finally:
        for disk in made:
            disk.unmount()
            disk.image.unlink()


def test_a_power_failure_of_all_brokers_at_once_loses_nothing_acknowledged(tmp_path, disks):
    three = Cluster(3, tmp_path / "data", {}, shards=1, memory="128MiB")
    try:
        three.start()
        admin = AdminClient({**QUIET, "bootstrap.servers": three.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        workload = Workload(three.bootstrap, TOPIC, PARTITIONS, rate=150, padding=200)
        try:
            workload.start()
            for number in range(TIMES):
                unsynced = f"unsynced-{number}"
                workload.wait_progress(500, timeout_s=120)
                for disk in disks:
                    disk.write_unsynced(unsynced)
                fail_power(disks)
                for node in three.brokers:
                    three.kill(node)
                for disk in disks:
                    disk.unmount()
                    disk.mount()
                    assert not disk.has(unsynced), "the disk has kept what nobody synced: nothing is tested"
                three.start()
            workload.wait_progress(500, timeout_s=120)
            workload.finish()
        finally:
            print(f"{workload.acknowledged} records acknowledged")
            workload.give_up()
        for broker in three.brokers.values():
            assert broker.stop() == 0
        compare_logs(three, PARTITIONS)
    finally:
        three.close()

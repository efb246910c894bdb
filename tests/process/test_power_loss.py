"""The power fails for all brokers of a cluster at once, on real file systems: no acknowledged record is lost.

Each broker keeps its data in an ext4 file system of its own in a loop image. EXT4_IOC_SHUTDOWN without a flush of the
journal takes them away in the midst of the load: what was not synced is gone, where a kill alone leaves it in the page
cache. ``MILLSTREAM_POWER_LOSSES`` (default 3) is how often that happens.
"""

import fcntl
import os
import struct

import pytest
from cluster_faults import TOPIC, compare_logs
from confluent_kafka.admin import AdminClient, NewTopic
from crash_clients import QUIET
from crash_workload import Workload
from loop_disks import CAN_MOUNT, loop_disks

from millstream.testing.clusters import Cluster

TIMES = int(os.environ.get("MILLSTREAM_POWER_LOSSES", "3"))
PARTITIONS = 4
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(300 + 120 * TIMES),
    pytest.mark.skipif(not CAN_MOUNT, reason="needs root and mkfs.ext4"),
]


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
    with loop_disks(tmp_path, (1, 2, 3)) as made:
        yield made


def test_a_power_failure_of_all_brokers_at_once_loses_nothing_acknowledged(tmp_path, disks):
    three = Cluster(3, tmp_path / "data", {}, shards=1, memory="128MiB")
    lost = 0
    try:
        three.start()
        admin = AdminClient({**QUIET, "bootstrap.servers": three.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        workload = Workload(three.bootstrap, TOPIC, PARTITIONS, rate=150, padding=200)
        try:
            workload.start()
            for number in range(TIMES):
                unsynced = f"unsynced-{number}"
                workload.wait_progress(500)
                for disk in disks.values():
                    disk.write_unsynced(unsynced)
                fail_power(disks.values())
                for node in three.brokers:
                    three.kill(node)
                for disk in disks.values():
                    disk.unmount()
                    disk.mount()
                    lost += not disk.has(unsynced)  # unless a checkpoint has just synced the whole file system
                three.start()
            workload.wait_progress(500)
            workload.finish()
        finally:
            print(f"{workload.acknowledged} records acknowledged; {lost} of {3 * TIMES} disks have lost something")
            workload.give_up()
        for broker in three.brokers.values():
            assert broker.stop() == 0
        compare_logs(three, PARTITIONS)
        assert lost, "the disks have kept everything that nobody synced: nothing is tested"
    finally:
        three.close()

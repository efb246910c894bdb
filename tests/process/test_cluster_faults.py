"""A cluster under kills, pauses, cut networks, full disks, leader storms and rolling restarts: the checker judges it.

As root each broker has a file system of its own, which fills up; without root that fault is not among them.

``MILLSTREAM_FAULT_MINUTES`` (default 1.5) is how long faults go on, ``MILLSTREAM_SEED`` which ones.
With ``MILLSTREAM_PROXIES=1`` networks are cut by proxies, as they are without root.
"""

import os
import shutil
import time
from contextlib import closing

import pytest
from cluster_faults import TOPIC, Faults, compare_logs
from confluent_kafka.admin import AdminClient, NewTopic
from crash_clients import QUIET
from crash_workload import Workload
from loop_disks import CAN_MOUNT, loop_disks

from millstream.testing.clusters import Cluster

MINUTES = float(os.environ.get("MILLSTREAM_FAULT_MINUTES", "1.5"))
SEED = int(os.environ.get("MILLSTREAM_SEED", "1"))
PARTITIONS = 4

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(MINUTES * 60 + 300),
]


@pytest.fixture
def disks(tmp_path):
    """File systems of the brokers, where there is root to mount them."""
    if not CAN_MOUNT:
        (tmp_path / "data").mkdir()
        yield None
        return
    with loop_disks(tmp_path, (1, 2, 3)) as made:
        yield made


@pytest.fixture
def three(tmp_path, disks):
    networks = "proxies" if os.environ.get("MILLSTREAM_PROXIES") else True
    made = Cluster(3, tmp_path / "data", {}, shards=1, memory="128MiB", networks=networks)
    with closing(made):
        made.start()
        yield made
        if os.environ.get("MILLSTREAM_KEEP_LOGS"):
            for node, broker in made.brokers.items():
                shutil.copy(broker.log_path, f"{os.environ['MILLSTREAM_KEEP_LOGS']}/{node}.log")


def test_clients_of_a_faulty_cluster_lose_nothing_and_replicas_do_not_diverge(three, disks):
    admin = AdminClient({**QUIET, "bootstrap.servers": three.bootstrap})
    for done in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
        done.result(60)
    workload = Workload(three.bootstrap, TOPIC, PARTITIONS, rate=150, padding=200)
    faults = Faults(three, workload, SEED, disks)
    try:
        workload.start()
        workload.wait_progress(500)
        limit = time.monotonic() + 60 * MINUTES
        while time.monotonic() < limit:
            faults.inflict()
        workload.finish()
    finally:
        print(f"{faults.done}, {workload.acknowledged} records acknowledged")
        workload.give_up()
    for broker in three.brokers.values():
        assert broker.stop() == 0
    compare_logs(three, PARTITIONS)

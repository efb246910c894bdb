"""Helpers of a shard that are stopped (SIGSTOP) under load: who needs them waits, it is said, and nothing is lost."""

import os
import random
import signal
import subprocess

import pytest
from fault_support import Scene

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "role",
    ["writer", pytest.param("worker", marks=pytest.mark.slow), pytest.param("cleaner", marks=pytest.mark.slow)],
)
def test_a_stopped_helper_holds_up_who_needs_it_and_goes_on_where_it_was(tmp_path, role):
    # The worker makes the files of the write-ahead log, too; each tick takes 8 KiB of what there is.
    room = {"wal.bytes": "32MiB", "wal.file.bytes": "8MiB"}
    with Scene(tmp_path, random.Random(1), settings=room, mixed=True) as scene:
        scene.begin()
        pid = scene.pid_of(f"{role} 0")
        os.kill(pid, signal.SIGSTOP)
        try:
            scene.until(lambda: scene.said(f"{role} 0 (pid {pid}) was stopped by a signal", "WARN"), "it is said")
            acknowledged = scene.workload.acknowledged
            if role == "writer":
                assert not scene.said("goes on", "INFO")
            else:
                scene.workload.wait_progress(400)
                assert scene.workload.acknowledged > acknowledged
        finally:
            os.kill(pid, signal.SIGCONT)
        scene.until(lambda: scene.said(f"{role} 0 continues after it was stopped for", "INFO"), "it is over")
        scene.ends_well()
        assert scene.lines("ERROR") == []


@pytest.mark.slow
@pytest.mark.parametrize("role", ["writer", "worker", "cleaner"])
def test_a_helper_that_stays_stopped_longer_than_clients_wait_ends_nothing(tmp_path, role):
    """Requests run out of time, the log fills up, sessions end: the broker is there all the same."""
    with Scene(tmp_path, random.Random(2), mixed=True, rate=2000) as scene:
        scene.begin()
        pid = scene.pid_of(f"{role} 0")
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                scene.broker.wait(15)
        finally:
            os.kill(pid, signal.SIGCONT)
        scene.ends_well()
        assert scene.lines("ERROR") == []


@pytest.mark.slow
@pytest.mark.parametrize("role", ["writer", "worker", "cleaner"])
def test_a_broker_that_is_told_to_stop_does_so_in_time_though_a_helper_cannot(tmp_path, role):
    with Scene(tmp_path, random.Random(3), settings={"shutdown.timeout.ms": 3000}) as scene:
        scene.begin()
        os.kill(scene.pid_of(f"{role} 0"), signal.SIGSTOP)
        assert scene.broker.stop(20) == 0
        assert scene.said("the last checkpoint took too long; the next start replays the write-ahead log")
        scene.broker.start()
        scene.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["writer", "worker", "cleaner", "shard"])
def test_a_helper_that_is_killed_takes_the_broker_with_it_by_name_and_nothing_is_lost(tmp_path, role):
    with Scene(tmp_path, random.Random(4)) as scene:
        scene.begin()
        os.kill(scene.pid_of(f"{role} 0"), signal.SIGKILL)
        assert scene.broker.wait(60) == 75
        assert scene.said(f"{role} 0 was killed by SIGKILL", "ERROR")
        scene.comes_back()

"""``memory.lock``: the shards' memory is in RAM from the start on, or the broker does not start."""

import ctypes
import resource
import subprocess
import sys

import pytest

from millstream.shard.process import EXIT_UNAVAILABLE
from millstream.testing.process import Broker
from waits import PATIENCE_S

pytestmark = pytest.mark.process

CAP_IPC_LOCK, PR_CAPBSET_DROP = 14, 24
BYTES = 64 << 20


def without_the_right():
    """Runs in a child: no CAP_IPC_LOCK after the next exec, also not for root, and a limit below the budget."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))


def locked_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmLck:"))


def test_the_memory_is_locked_if_that_is_set():
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] < BYTES and not _may_lock():
        pytest.skip("needs root, CAP_IPC_LOCK or ulimit -l above 64 MiB")
    with Broker(settings={"memory.lock": "true", "memory.bytes": str(BYTES)}, shards=2) as broker:
        assert locked_bytes(broker.pid) >= BYTES * 0.99


def _may_lock():
    with open("/proc/self/status") as status:
        found = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    return bool(int(found, 16) >> CAP_IPC_LOCK & 1)


def test_no_memory_is_locked_unless_that_is_set(broker):
    assert locked_bytes(broker.pid) == 0


def test_a_start_without_the_right_says_what_is_missing(tmp_path):
    addresses = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    locked = ["--memory", "64MiB", "--shards", "1", "--set", "memory.lock=true"]
    started = subprocess.run(
        [sys.executable, "-m", "millstream.cli", "start", "--data", str(tmp_path / "d"), *addresses, *locked],
        preexec_fn=without_the_right,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert started.returncode == EXIT_UNAVAILABLE
    assert "memory.lock=true" in started.stderr
    assert "LimitMEMLOCK" in started.stderr

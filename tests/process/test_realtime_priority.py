"""``shards.realtime``: who gets real-time priority, and what is said where nobody may have it."""

import contextlib
import ctypes
import os
import resource
import subprocess
import sys

import pytest
from bench import processes
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.shard.process import EXIT_UNAVAILABLE, may_become_realtime
from millstream.testing.process import Broker
from waits import PATIENCE_S, until

pytestmark = pytest.mark.process

REALTIME = {"shards.realtime": "true"}
CAP_SYS_NICE, PR_CAPBSET_DROP = 23, 24

may = pytest.mark.skipif(not may_become_realtime(), reason="needs root, CAP_SYS_NICE or ulimit -r 1")


def policies(root):
    """The scheduling policies of the broker's processes, by what they are called without their number."""
    found = {}
    for pid in processes.tree(root):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            policy = os.sched_getscheduler(pid)
            found.setdefault(processes.comm_of(pid).split()[1], set()).add(policy)
    return found


def without_the_right():
    """Runs in a child: no CAP_SYS_NICE after the next exec, also not for root, and nothing that the limit allows."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))


@may
def test_shards_and_their_writers_have_it_and_nobody_else():
    with Broker(settings={**REALTIME, "storage.mode.default": "tiered"}, shards=2) as broker:
        before = policies(broker.pid)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"value")
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        consumer.assign([TopicPartition("t", 0, 0)])
        assert consumer.consume(1, 120)[0].value() == b"value"
        consumer.close()
        until(lambda: "archive" in policies(broker.pid), "the tiered topic has no archive process")
        found = policies(broker.pid)
    assert "archive" not in before
    real, ordinary = {os.SCHED_RR}, {os.SCHED_OTHER}
    assert found == {
        "supervisor": ordinary,
        "shard": real,
        "writer": real,
        "worker": ordinary,
        "cleaner": ordinary,
        "archive": ordinary,
    }


def test_nobody_has_it_unless_it_was_asked_for(broker):
    assert set().union(*policies(broker.pid).values()) == {os.SCHED_OTHER}


def test_a_start_without_the_right_to_it_says_what_is_missing(tmp_path):
    command = [sys.executable, "-m", "millstream.cli", "start", "--listen", "127.0.0.1:0", "--shards", "1"]
    command += ["--data", str(tmp_path), "--set", "shards.realtime=true"]
    refused = subprocess.run(
        command, preexec_fn=without_the_right, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert refused.returncode == EXIT_UNAVAILABLE
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
    assert "shards.realtime" in refused.stderr
    assert "LimitRTPRIO=1" in refused.stderr
    assert os.listdir(tmp_path) == []

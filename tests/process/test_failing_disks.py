"""A disk that fails under a real broker: what clients are told, what the operator reads, what is there afterwards.

A failed write or sync stops the broker with the reason; after the restart everything that was acknowledged is there,
though all that no sync had covered is gone. A failed read is an error for who asked, the rest is served. A disk that
is slow, or does not answer for seconds, makes producers wait and loses nothing.
"""

import errno
import random

import pytest
from fault_support import PARTITIONS, TOPIC, Scene, fetch_error, segments

from millstream.testing.disk import Rule
from millstream.testing.process import BrokerFailed

pytestmark = pytest.mark.process

EIO, ENOSPC, EROFS = errno.EIO, errno.ENOSPC, errno.EROFS
STOPPING = {
    "wal-write": (Rule("write", ".wal", EIO), r"a write-ahead log frame could not be written: Input/output error"),
    "wal-read-only": (Rule("write", ".wal", EROFS), r"frame could not be written: Read-only file system"),
    "wal-sync": (Rule("sync", ".wal", EIO), r"a write-ahead log frame could not be synced: Input/output error"),
    "segment-write": (Rule("write", ".log", EIO), r"topics/\S+\.log could not be written: Input/output error"),
    "segment-sync": (Rule("sync", "/topics/", EIO), r"topics/\S+\.log could not be synced: Input/output error"),
    "index-write": (
        Rule("write", ".index", EIO),
        r"topics/\S+\.index could not be made durable: Input/output error",
    ),
    "epochs-write": (
        Rule("write", "epochs", EIO),
        r"topics/\S+epochs\S* could not be made durable: Input/output error",
    ),
    "epochs-name": (
        Rule("name", "epochs", EIO),
        r"topics/\S+epochs\S* could not be made durable: Input/output error",
    ),
    "state-write": (Rule("write", "/state", EIO), r"wal/0/state\S* could not be made durable: Input/output error"),
    "state-sync": (Rule("sync", "/state", EIO), r"wal/0/state\S* could not be made durable: Input/output error"),
}
FAST = ("wal-sync",)
ONE_SEGMENT = {"log.roll.ms": 600_000}
"""What there is before a restart is written on after it, so that its index is needed."""


def some(cases):
    return [pytest.param(*cases[name], id=name, marks=() if name in FAST else pytest.mark.slow) for name in cases]


@pytest.mark.parametrize(("rule", "reason"), some(STOPPING))
def test_a_failed_write_or_sync_stops_the_broker_and_what_was_acknowledged_is_there(tmp_path, rule, reason):
    with Scene(tmp_path, random.Random(1)) as scene:
        scene.begin()
        scene.faults.inject(rule)
        scene.stops(reason)
        scene.comes_back()


@pytest.mark.slow
def test_a_read_that_fails_is_an_error_for_who_asked_and_the_rest_is_served(tmp_path):
    with Scene(tmp_path, random.Random(2), settings=ONE_SEGMENT) as scene:
        scene.begin(400)
        assert scene.broker.stop() == 0  # what it had in memory it has to read now
        (directory,) = {path.parent for path in segments(scene.broker.data_dir, TOPIC, 0)}
        scene.faults.inject(Rule("read", f"{directory}/", EIO))
        scene.broker.start()
        assert fetch_error(scene.broker, TOPIC, 0, 0) == "KAFKA_STORAGE_ERROR"
        assert fetch_error(scene.broker, TOPIC, 1, 0) == "NONE"
        unreadable = f"{TOPIC}/0] {directory}", "could not be read: Input/output error"
        assert scene.complaints(*unreadable, ".log")
        assert scene.metric("millstream_storage_faults_total", kind="read_error") >= 1
        scene.workload.wait_progress(100)  # producers of all partitions go on
        scene.until(lambda: scene.complaints(*unreadable, ".index"), "its index is asked for")
        scene.faults.inject()
        assert fetch_error(scene.broker, TOPIC, 0, 0) == "NONE"
        scene.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_an_index_that_cannot_be_read_is_made_anew(tmp_path, how):
    """At the start after a crash, or by the first checkpoint of a broker that had no need to look at it before."""
    with Scene(tmp_path, random.Random(5), settings=ONE_SEGMENT) as scene:
        scene.begin(400)
        if how == "stop":
            assert scene.broker.stop() == 0
        else:
            scene.broker.kill()
        (index,) = (path.with_suffix(".index") for path in segments(scene.broker.data_dir, TOPIC, 0))
        scene.faults.inject(Rule("read", str(index), EIO))
        scene.broker.start()
        scene.until(lambda: scene.said("repaired: ", "WARN"), "the index is repaired")
        assert [line for line in scene.lines("WARN") if "repaired: " in line and str(index) in line]
        assert (how == "stop") == bool(scene.complaints(str(index), "could not be read"))
        assert fetch_error(scene.broker, TOPIC, 0, 0) == "NONE"
        scene.faults.inject()
        scene.ends_well()


@pytest.mark.slow
def test_a_partition_that_cannot_be_opened_is_refused_and_the_rest_is_served(tmp_path):
    with Scene(tmp_path, random.Random(6)) as scene:
        scene.begin()
        scene.workload.finish()
        assert scene.broker.stop() == 0
        scene.broker.start()  # nothing is in the write-ahead log now: with what cannot be replayed there is no start
        (directory,) = {path.parent for path in segments(scene.broker.data_dir, TOPIC, 0)}
        scene.broker.kill()
        scene.faults.inject(Rule("read", f"{directory}/epochs", EIO))
        scene.broker.start()
        assert scene.said(f"{TOPIC}/0] not served: {directory}/epochs could not be read: Input/output error", "ERROR")
        assert fetch_error(scene.broker, TOPIC, 0, 0) == "KAFKA_STORAGE_ERROR"
        assert fetch_error(scene.broker, TOPIC, 1, 0) == "NONE"
        assert scene.broker.stop() == 0
        scene.faults.inject()
        scene.broker.start()
        assert fetch_error(scene.broker, TOPIC, 0, 0) == "NONE"


@pytest.mark.slow
def test_a_partition_that_keeps_the_broker_from_starting_can_be_moved_aside(tmp_path):
    with Scene(tmp_path, random.Random(8), settings=ONE_SEGMENT) as scene:
        scene.begin(600)
        (directory,) = {path.parent for path in segments(scene.broker.data_dir, TOPIC, 0)}
        scene.broker.kill()
        scene.workload.give_up()
        scene.faults.inject(Rule("read", f"{directory}/", EIO))
        with pytest.raises(BrokerFailed, match="ended with 69"):
            scene.broker.start()
        assert scene.complaints("recovery failed", str(directory), "Input/output error")
        directory.rename(tmp_path / "aside")
        scene.faults.inject()
        scene.broker.start()
        assert scene.complaints(f"not served: {TOPIC}/0: offsets 0 to", "neither in a segment nor in the write-ahead")
        assert fetch_error(scene.broker, TOPIC, 0, 0) == "KAFKA_STORAGE_ERROR"
        assert [fetch_error(scene.broker, TOPIC, number, 0) for number in range(1, PARTITIONS)] == ["NONE"] * 3
        assert list(directory.glob("*.quarantined"))


@pytest.mark.slow
def test_without_the_controllers_log_there_is_no_start_and_it_is_said_why(tmp_path):
    with Scene(tmp_path, random.Random(7)) as scene:
        scene.begin()
        scene.broker.kill()
        scene.faults.inject(Rule("read", "controller/log/epochs", EIO))
        with pytest.raises(BrokerFailed, match="ended with 69"):
            scene.broker.start()
        assert scene.complaints("controller/log/epochs", "Input/output error")
        assert not scene.said("Traceback")
        scene.comes_back()


@pytest.mark.slow
def test_a_sync_that_takes_seconds_makes_its_shard_wait_and_no_other(tmp_path):
    with Scene(tmp_path, random.Random(3), shards=2) as scene:
        scene.begin()
        before = [scene.workload.highest[place] for place in scene.workload.main_places]
        scene.faults.inject(Rule("sync", "/wal/0/", delay_ms=3000))
        scene.until(lambda: scene.said("the disk has not written the write-ahead log of shard 0", "WARN"), "it is said")
        assert not scene.said("the write-ahead log of shard 1", "WARN")

        def moved():
            return [
                scene.workload.highest[place] - old
                for place, old in zip(scene.workload.main_places, before, strict=True)
            ]

        scene.until(lambda: max(moved()) > 50, "the other shard goes on")
        scene.faults.inject()
        scene.until(lambda: min(moved()) > 50, "all go on")
        assert scene.said("the disk answered the write-ahead log of shard 0")
        scene.ends_well()
        assert scene.lines("ERROR") == []


@pytest.mark.slow
def test_a_slow_disk_is_slow_and_nothing_else(tmp_path):
    with Scene(tmp_path, random.Random(4), mixed=True) as scene:
        slow = [Rule(op, "", delay_ms=15) for op in ("write", "sync", "read", "name")]
        scene.begin()
        scene.faults.inject(*slow)
        scene.workload.wait_progress(1000)
        scene.faults.inject()
        scene.ends_well()
        assert scene.lines("ERROR") == []

"""A broker whose disk is lost is taken over from the object store: nothing acknowledged is lost, no zombie goes on."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from growing_support import status as cluster_status
from moving_support import moving
from object_wal_support import settings
from shared_cluster_support import in_order, leader, produce, status
from take_over_support import fenced
from tiering import ask, consume, expected
from wide_support import create_wide, load

from millstream.testing import cluster
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

BY_HAND = {"dead.broker.take.over.after.ms": -1}


def command(live, work, node=2):
    words = ["cluster", "take-over", str(node), "--from-store", str(work), "--json", "--bootstrap", live.bootstrap]
    return [sys.executable, "-m", "millstream.cli", *words, "--set", "shards=1", "--set", "memory.bytes=128MiB"]


def take_over(live, work, node=2, code=0):
    """What the command prints, read as JSON, or what it says when it refuses."""
    done = subprocess.run(command(live, work, node), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return (json.loads(done.stdout), done.stderr) if code == 0 else done.stderr


def kill_when(live, work, reached):
    """Begin a take-over, and kill the command when ``reached()``."""
    until(lambda: fenced(live), "broker 2 counts as alive")
    run = subprocess.Popen(command(live, work), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: run.poll() is not None or reached(), "the take-over stands still", every_s=0.01)
    with suppress(ProcessLookupError):
        run.send_signal(signal.SIGKILL)
    said = run.communicate()[1]
    assert run.returncode in (0, -signal.SIGKILL), said


def test_a_broker_that_dies_under_load_with_its_disk_is_taken_over_by_a_command_that_is_killed_at_any_step(tmp_path):
    first, work, bucket = tmp_path / "first", tmp_path / "work", tmp_path / "bucket"
    with cluster(3, settings=settings(bucket, **BY_HAND), networks=False) as made:
        one = made.brokers[1]
        create_wide(made, "load", [[1], [2], [3], [2]])
        until(lambda: sum(len(status(each, "load")) for each in made.brokers.values()) == 4, "not all are open")
        with load(made.bootstrap, "load", 4, members=1, rate=60, padding=300) as workload:
            made.kill(2)
            shutil.rmtree(made.brokers[2].data_dir)
            assert not (bucket / "shared").exists(), "an upload has it as well, and the test shows nothing"
            kill_when(one, first, lambda: leader(one, "load", 1) == leader(one, "load", 3) == 2)
            until(lambda: fenced(one), "broker 2 counts as alive")
            shutil.rmtree(first, ignore_errors=True)  # the next command has the store alone, as this one had
            steps = {
                "the directory has an identity": (work / "identity.json").exists,
                "the broker serves": (work / "broker.json").exists,
                "a partition moves": lambda: moving(one) or {leader(one, "load", at) for at in (1, 3)} & {1, 3},
                "the directory is fenced": lambda: '"next_incarnation": ""' not in (work / "identity.json").read_text(),
                "the directory is marked": (work / "taken-over.json").exists,
            }
            for reached in steps.values():
                kill_when(one, work, reached)
            until(lambda: fenced(one), "broker 2 counts as alive")
            take_over(one, work)
            until(lambda: {leader(one, "load", at) for at in (1, 3)} <= {1, 3}, "no broker leads")
            before = workload.highest["load", 1]
            until(lambda: workload.highest["load", 1] > before, "its producers do not go on")
            workload.wait_progress(200)
        assert take_over(one, work)[0]["done_before"]
        assert cluster_status(one)["take_overs"] > 0


def test_a_paused_broker_is_taken_over_without_its_disk_and_acknowledges_nothing_when_it_goes_on(tmp_path):
    work = tmp_path / "work"
    with cluster(3, settings=settings(tmp_path / "bucket", **BY_HAND), networks=False) as made:
        one, two = made.brokers[1], made.brokers[2]
        create_wide(made, "taken", [[2], [2]])
        ask(one, "create_topics", [NewTopic("plain", 1, replica_assignment=[[2]])], "plain")
        for partition in (0, 1):
            produce(one, "taken", range(100), partition)
        assert "is alive" in take_over(one, work, code=1)
        delivered = []
        options = {"bootstrap.servers": two.bootstrap, "linger.ms": 0, "log_level": 0, "message.timeout.ms": 60_000}
        late = Producer(options)
        late.produce("taken", b"warm", partition=0, on_delivery=lambda error, _: error or delivered.append(b"warm"))
        assert late.flush(60) == 0
        made.pause(2)
        late.produce("taken", b"late", partition=0, on_delivery=lambda error, _: error or delivered.append(b"late"))
        late.poll(0.5)
        until(lambda: fenced(one), "broker 2 counts as alive")
        assert "give it with --data" in take_over(one, two.data_dir, code=1)
        done, said = take_over(one, work)
        assert done["partitions"] == ["taken/0", "taken/1"]
        assert "plain/0" in said
        assert cluster_status(one)["take_overs"] == 1
        assert "is taken over as" in one.log_path.read_text()
        assert take_over(one, work)[0]["done_before"]
        made.go_on(2)
        until(lambda: not two.running, "the zombie continues")
        late.flush(60)
        for partition in (0, 1):
            until(lambda at=partition: leader(one, "taken", at) in (1, 3), "no broker leads")
            produce(one, "taken", range(100, 120), partition)
        assert in_order(consume(one, "taken", 1)) == expected(range(120))
        found = [value for _, _, value, _ in consume(one, "taken", 0)]
        assert all(value in found for value in delivered), "an acknowledgement of the zombie is lost"
        assert found.count(b"late") == delivered.count(b"late") <= 1
        assert len([value for value in dict.fromkeys(found) if value not in (b"warm", b"late")]) == 120


def test_brokers_whose_log_is_on_the_disk_alone_are_not_taken_over_from_the_store(tmp_path):
    with cluster(3, settings=settings(tmp_path / "bucket", **{"shared.wal": "disk"}), networks=False) as made:
        made.kill(2)
        until(lambda: fenced(made.brokers[1]), "broker 2 counts as alive")
        assert "the brokers have shared.wal=disk" in take_over(made.brokers[1], tmp_path / "work", code=1)
        assert not list((tmp_path / "work").iterdir())

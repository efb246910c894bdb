"""The disk of a dead broker, attached elsewhere, is taken over: nothing acknowledged is lost, no zombie comes back."""

import shutil
import signal
import subprocess
from contextlib import suppress

import pytest
from confluent_kafka.admin import NewTopic
from moving_support import moving, replicas_of
from shared_cluster_support import in_order, leader, status
from shared_support import SHARED, objects, settings
from take_over_support import attach, command, fenced, take_over
from tiering import ask, consume, expected, produce

from millstream.testing import cluster
from millstream.testing.process import BrokerFailed
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

NEVER = {"shared.upload.interval.ms": 3_600_000, "shared.upload.bytes": 1 << 30}


def create(made, *topics, partitions=2, config=None, replicas=(2,)):
    one = made.brokers[1]
    for name in topics:
        layout = [list(replicas)] * partitions
        ask(one, "create_topics", [NewTopic(name, partitions, replica_assignment=layout, config=config or {})], name)
        for at in range(partitions):
            until(lambda at=at, name=name: leader(one, name, at) in replicas, "no broker leads")


def create_and_fill(made):
    """Records that the disk of broker 2 alone has, most of them in its write-ahead log."""
    one = made.brokers[1]
    create(made, "clicks", config=SHARED)
    create(made, "plain", partitions=1, config={"retention.ms": "-1"})
    for partition in (0, 1):
        produce(one, "clicks", range(200), partition)
    produce(one, "plain", range(100))


def archived(made, topic, partition):
    """The end of what is in objects, as the leader knows it, as an offset; -1 while it has not opened the partition."""
    node = leader(made.brokers[1], topic, partition)
    replica = status(made.brokers[node], topic).get(partition) if node in made.brokers else None
    return replica["archived_end_offset"] if replica else -1


@pytest.mark.ci
def test_a_disk_that_is_attached_elsewhere_gives_everything_that_was_acknowledged(tmp_path):
    bucket = tmp_path / "bucket"
    with cluster(3, settings=settings(bucket, **NEVER), networks=False) as made:
        one, two = made.brokers[1], made.brokers[2]
        create_and_fill(made)
        create(made, "pair", partitions=1, config={"retention.ms": "-1"}, replicas=(2, 3))
        produce(one, "pair", range(100))
        assert not objects(bucket), "the write-ahead log alone has the records"
        assert "broker 2 is alive" in take_over(one, copy(two.data_dir, tmp_path / "alive"), code=1)
        assert "in use by another broker" in take_over(one, two.data_dir, code=1)

        two.kill()
        until(lambda: fenced(one), "broker 2 counts as alive")
        assert "belongs to broker 3, not 2" in take_over(one, copy(made.brokers[3].data_dir, tmp_path / "3"), code=1)
        zombie = copy(two.data_dir, tmp_path / "zombie")
        attached = attach(made, tmp_path)
        done = take_over(one, attached)
        assert done["partitions"] == ["clicks/0", "clicks/1", "pair/0", "plain/0"] and done["uploaded_bytes"] > 200_000
        check(one, 200)
        assert in_order(consume(one, "pair")) == expected(range(100))
        assert set(replicas_of(one, "pair")[0]) == {1, 3}
        for partition in (0, 1):
            until(lambda at=partition: archived(made, "clicks", at) >= 200, "the leader knows no object")
        assert "is taken over as" in one.log_path.read_text() + made.brokers[3].log_path.read_text()
        assert take_over(one, attached)["done_before"]

        shutil.copytree(zombie, two.data_dir)
        with pytest.raises(BrokerFailed, match="what it holds is outdated"):
            two.start()
        shutil.rmtree(two.data_dir)
        shutil.copytree(attached, two.data_dir)
        with pytest.raises(BrokerFailed, match="what it holds is outdated"):
            two.start()

        for partition in (0, 1):
            produce(one, "clicks", range(200, 230), partition)
        made.replace(2)
        check(one, 230)


@pytest.mark.timeout(900)
def test_a_take_over_that_is_killed_at_any_step_is_completed_by_the_next(tmp_path):
    bucket = tmp_path / "bucket"
    with cluster(3, settings=settings(bucket, **NEVER), networks=False) as made:
        one, two = made.brokers[1], made.brokers[2]
        create_and_fill(made)
        two.kill()
        until(lambda: fenced(one), "broker 2 counts as alive")
        attached = attach(made, tmp_path)
        identity = (attached / "identity.json").read_text()
        steps = {
            "the new incarnation is on disk": lambda: (attached / "identity.json").read_text() != identity,
            "the earlier life is fenced": lambda: '"next_incarnation": ""' in (attached / "identity.json").read_text(),
            "the broker serves": (attached / "broker.json").exists,
            "an object is there": lambda: objects(bucket),
            "a partition moves": lambda: moving(one) or leader(one, "plain") in (1, 3),
            "all have moved": lambda: {leader(one, "clicks", at) for at in (0, 1)} <= {1, 3},
            "the disk is marked": (attached / "taken-over.json").exists,
        }
        (attached / "broker.json").unlink()
        for name, reached in steps.items():
            until(lambda: fenced(one), f"before '{name}' broker 2 counts as alive")
            run = subprocess.Popen(command(one, attached), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            until(lambda run=run, reached=reached: run.poll() is not None or reached(), name, every_s=0.01)
            with suppress(ProcessLookupError):
                run.send_signal(signal.SIGKILL)
            said = run.communicate()[1]
            assert run.returncode in (0, -signal.SIGKILL), f"{name}: {said}"
        until(lambda: fenced(one), "broker 2 counts as alive")
        take_over(one, attached)
        check(one, 200)


def check(broker, end):
    for partition in (0, 1):
        assert in_order(consume(broker, "clicks", partition)) == expected(range(end))
    assert in_order(consume(broker, "plain")) == expected(range(100))


def copy(source, target):
    """Copy a data directory.

    Files that a running broker removes meanwhile are left out, as its temporary files are.
    """

    def copy_if_there(file, to):
        with suppress(FileNotFoundError):
            shutil.copy2(file, to)

    shutil.copytree(
        source,
        target,
        ignore=lambda _, names: [name for name in names if name.endswith((".sock", ".tmp"))],
        copy_function=copy_if_there,
    )
    return target

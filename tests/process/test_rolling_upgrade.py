"""A cluster of an older release is upgraded, one broker after the other, while clients produce."""

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from cluster_support import Unordered, all_in_sync, create, read
from growing_support import millstream, status
from moving_support import Load, moving, replicas_of

from millstream.core.controller.commands import FEATURE_LEVEL
from millstream.testing.clusters import Cluster
from waits import until

pytestmark = pytest.mark.process

OLD = "ec525f1"
"""A commit of the first release with replicas; nothing moved between its brokers."""


LEVEL_BEFORE = "cf4b29e0"
"""A commit of a release with the feature level before the last."""


def source_of(commit, folder):
    """The source of an older release."""
    root = Path(__file__).parents[2]
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=root, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"commit {commit} is not in this copy of the repository")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder / commit, filter="data")
    return str(folder / commit / "src")


def run_older(broker, source):
    """Let a broker start by an older source from now on, which does not know a setting of tests."""
    broker.env["PYTHONPATH"] = source
    broker.settings.pop("insecure.listeners", None)


def run_ours(broker):
    broker.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")


@pytest.mark.slow
def test_nothing_is_lost_while_brokers_are_upgraded_and_then_replicas_move(tmp_path):
    old_source = source_of(OLD, tmp_path)
    (tmp_path / "data").mkdir()
    made = Cluster(3, tmp_path / "data", {}, shards=1, memory="128MiB")
    for broker in made.brokers.values():
        run_older(broker, old_source)
    made.start()
    try:
        one = made.brokers[1]
        create(one, "t", 3, 3)
        create(one, "alone", 3)
        with Load(made.bootstrap, "t", 3) as load:
            until(lambda: len(load.acked) > 100)
            for node, broker in made.brokers.items():
                assert "feature_level" not in status(broker), "it runs the older release"
                before = len(load.acked)
                broker.stop()
                run_ours(broker)
                made.restart(node)
                until(lambda: all_in_sync(made, "t"))
                until(lambda before=before: len(load.acked) > before + 100)
            until(lambda: status(one).get("feature_level") == FEATURE_LEVEL)
            millstream(one, "topic", "alter", "alone", "--replication", "3")
            assert not moving(one) and all(sorted(nodes) == [1, 2, 3] for nodes in replicas_of(one, "alone"))
        assert not load.failed
        assert read(made.bootstrap, "t", 3, len(load.acked)) == Unordered(load.acked)
    finally:
        made.close()


@pytest.mark.slow
def test_an_upgraded_broker_goes_back_while_another_runs_the_old_release(tmp_path):
    old_source = source_of(LEVEL_BEFORE, tmp_path)
    (tmp_path / "data").mkdir()
    made = Cluster(3, tmp_path / "data", {}, shards=1, memory="128MiB")
    for broker in made.brokers.values():
        run_older(broker, old_source)
    made.start()
    try:
        one = made.brokers[1]
        create(one, "t", 3, 3)
        with Load(made.bootstrap, "t", 3) as load:

            def settled():
                before = len(load.acked)
                until(lambda: all_in_sync(made, "t"))
                until(lambda: len(load.acked) > before + 100)

            settled()
            level = status(one)["feature_level"]
            made.brokers[2].stop()
            run_ours(made.brokers[2])
            made.restart(2)
            settled()
            made.brokers[2].stop()
            made.replace(2, prepare=lambda broker: run_older(broker, old_source))
            settled()
            for node in (1, 3):
                made.brokers[node].stop()
                run_ours(made.brokers[node])
                made.restart(node)
                settled()
            assert status(one)["feature_level"] == level < FEATURE_LEVEL
            made.brokers[2].stop()
            run_ours(made.brokers[2])
            made.restart(2)
            settled()
            until(lambda: status(one)["feature_level"] == FEATURE_LEVEL)
        assert not load.failed
        assert read(made.bootstrap, "t", 3, len(load.acked)) == Unordered(load.acked)
    finally:
        made.close()

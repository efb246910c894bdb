"""A cluster of an older release is upgraded, one broker after the other, while clients produce."""

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from test_cluster import Unordered, all_in_sync, create, read, wait_for
from test_growing_clusters import millstream, status
from test_moving_replicas import DEADLINE_S, Load, moving, replicas_of

from millstream.core.controller.commands import FEATURE_LEVEL
from millstream.testing.clusters import Cluster

OLD = "ec525f1"
"""A commit of the first release with replicas; nothing moved between its brokers."""


@pytest.fixture
def old_source(tmp_path):
    """The source of the older release."""
    root = Path(__file__).parents[2]
    archive = subprocess.run(["git", "archive", OLD, "src"], cwd=root, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"commit {OLD} is not in this copy of the repository")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path / "old", filter="data")
    return str(tmp_path / "old" / "src")


@pytest.mark.slow
def test_nothing_is_lost_while_brokers_are_upgraded_and_then_replicas_move(tmp_path, old_source):
    (tmp_path / "data").mkdir()
    made = Cluster(3, tmp_path / "data", {}, shards=1, memory="128MiB")
    for broker in made.brokers.values():
        broker.env["PYTHONPATH"] = old_source
    made.start()
    try:
        one = made.brokers[1]
        create(one, "t", 3, 3)
        create(one, "alone", 3)
        with Load(made.bootstrap, "t", 3) as load:
            wait_for(lambda: len(load.acked) > 100, DEADLINE_S)
            for node, broker in made.brokers.items():
                assert "feature_level" not in status(broker), "it runs the older release"
                before = len(load.acked)
                broker.stop()
                broker.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
                made.restart(node)
                wait_for(lambda: all_in_sync(made, "t"), DEADLINE_S)
                wait_for(lambda before=before: len(load.acked) > before + 100, DEADLINE_S)
            wait_for(lambda: status(one).get("feature_level") == FEATURE_LEVEL, DEADLINE_S)
            millstream(one, "topic", "alter", "alone", "--replication", "3")
            assert not moving(one) and all(sorted(nodes) == [1, 2, 3] for nodes in replicas_of(one, "alone"))
        assert not load.failed
        assert read(made.bootstrap, "t", 3, len(load.acked)) == Unordered(load.acked)
    finally:
        made.close()

"""The controller's log of a cluster stays short; a broker that joins, or was away for long, is sent the snapshot."""

import pytest
from cluster_support import admin, all_in_sync, create, metadata, partitions, send
from growing_support import in_sync, status
from moving_support import Load
from snapshots_support import topic_directories

from millstream.testing import cluster
from waits import PATIENCE_S, until

pytestmark = pytest.mark.process

SHORT = {"internal.controller.segment.bytes": 4_096, "metadata.log.max.snapshot.interval.ms": 400}


def log_bytes(broker):
    return sum(path.stat().st_size for path in (broker.data_dir / "controller" / "log").glob("*.log"))


def first_offset(broker):
    return min((int(path.stem) for path in (broker.data_dir / "controller" / "log").glob("*.log")), default=-1)


@pytest.mark.slow
def test_brokers_that_were_away_and_that_join_get_the_snapshot_and_lose_what_was_deleted():
    with cluster(3, SHORT) as made:
        one, three = made.brokers[1], made.brokers[3]
        create(one, "kept", 3, 3)
        create(one, "gone", 3, 3)
        until(lambda: all_in_sync(made, "gone"))
        assert len(send(made.bootstrap, "gone", 3, 30, "g")) == len(send(made.bootstrap, "kept", 3, 30, "k")) == 30
        until(lambda: len(topic_directories(three)) == 2)
        with Load(made.bootstrap, "kept", 3) as load:
            until(lambda: len(load.acked) > 50)
            made.kill(3)
            client = admin(one, made.brokers[2])
            client.delete_topics(["gone"])["gone"].result(PATIENCE_S)
            known = first_offset(three)
            for number in range(25):
                create(one, f"churn-{number}", 4, 1, {"retention.ms": "3600000"})
                if number:
                    client.delete_topics([f"churn-{number - 1}"])[f"churn-{number - 1}"].result(PATIENCE_S)
            last = 24
            until(lambda: min(first_offset(made.brokers[node]) for node in (1, 2)) > known)
            assert log_bytes(one) < 20_000
            made.restart(3)
            until(lambda: all_in_sync(made, "kept"))
            assert "were received: this broker restarts with them" in three.log_path.read_text()
            until(lambda: f"churn-{last}" in metadata(made.brokers[1]).topics)
            kept = {path.name for path in made.brokers[1].data_dir.glob("topics/*")}
            assert len(topic_directories(three)) == 1 and topic_directories(three) <= kept, "the deleted topic is gone"

            four = made.add(4)
            until(lambda: len(status(one)["brokers"]) == 4 and status(one)["healthy"])
            assert "were received: this broker restarts with them" in four.log_path.read_text()
            before = len(load.acked)
            until(lambda: len(load.acked) > before + 50)
        assert not load.failed
        create(one, "later", 4, 3)
        until(lambda: len(partitions(one, "later")) == 4)
        assert {node for part in partitions(one, "later") for node in part.replicas} == {1, 2, 3, 4}
        until(lambda: all(all(in_sync(broker, "later")) for broker in made.brokers.values()))

"""Shared topics under load while brokers die, partitions move and the bucket fails: the checker of histories judges."""

import pytest
from moving_support import move, moving
from shared_cluster_support import leader, status
from shared_support import create, settings, uploaded
from take_over_support import attach, fenced, take_over
from tiered_stores import SLOW, STALLED, THROTTLED, object_store
from tiering import metric, tier
from wide_support import create_wide, load

from millstream.testing import cluster
from millstream.testing.process import Broker
from waits import moment, until

pytestmark = [pytest.mark.process, pytest.mark.slow]

MIB = 1 << 20


def test_a_broker_that_dies_under_load_is_taken_over_with_its_disk(tmp_path):
    with cluster(3, settings=settings(tmp_path / "bucket"), networks=False) as made:
        one = made.brokers[1]
        create_wide(made, "load", [[1], [2], [3], [2]])
        with load(made.bootstrap, "load", 4, members=1, rate=100, padding=300) as workload:
            made.brokers[2].kill()
            until(lambda: fenced(one), "broker 2 counts as alive")
            done = take_over(one, attach(made, tmp_path))
            assert {"load/1", "load/3"} <= set(done["partitions"])
            until(
                lambda: {leader(one, "load", at) for at in (1, 3)} <= {1, 3},
                "a partition of the dead broker has no leader",
            )
            before = workload.highest["load", 1]
            until(lambda: workload.highest["load", 1] > before, "its producers do not go on")
            workload.wait_progress(200)


def test_a_broker_that_dies_under_load_and_loses_its_disk_comes_back_with_all_that_was_acknowledged(tmp_path):
    own = settings(tmp_path / "bucket") | {"shared.wal": "object", "shared.wal.interval.ms": 20}
    with cluster(3, settings=own, networks=False) as made:
        create_wide(made, "load", [[1], [2], [3], [2]])
        with load(made.bootstrap, "load", 4, members=1, rate=100, padding=300) as workload:
            for _ in range(2):
                made.kill(2)
                made.replace(2)
                before = workload.highest["load", 1], workload.highest["load", 3]
                until(
                    lambda before=before: (
                        workload.highest["load", 1] > before[0] and workload.highest["load", 3] > before[1]
                    ),
                    "producers do not go on",
                )
                workload.wait_progress(300)


def test_a_hundred_partitions_move_under_load_without_their_data(tmp_path):
    count, padding = 100, 30_000
    with cluster(3, settings=settings(tmp_path / "bucket"), networks="proxies") as made:
        one = made.brokers[1]
        create_wide(made, "wide", [[1]] * count)
        with load(made.bootstrap, "wide", count, members=1, rate=15, padding=padding) as workload:
            workload.wait_progress(500)
            data = workload.acknowledged * padding
            passed = made.peer_bytes
            assert move(one, "wide", {at: [2] for at in range(count)}) == [(0, None)] * count
            until(lambda: not moving(one), "partitions do not move")
            passed = made.peer_bytes - passed
            print(f"{count} partitions with {data / MIB:.1f} MiB: moved with {passed / MIB:.2f} MiB")
            until(lambda: {leader(one, "wide", at) for at in range(count)} == {2}, "a partition did not move")
            workload.wait_progress(100)
        assert passed < data / 4
        until(lambda: len(status(made.brokers[2], "wide")) == count, "not every partition is there")


def test_producers_wait_while_the_bucket_fails_and_go_on_after(tmp_path, monkeypatch):
    limits = {"shared.uncommitted.max.bytes": MIB, "shared.upload.bytes": MIB // 2}
    with object_store("s3", tmp_path, monkeypatch) as store:
        own = settings(tmp_path / "none", **limits) | {"objects.url": store.url}
        with Broker(settings=own, shards=1) as broker:
            create(broker, "fails", 4)
            with load(broker.bootstrap, "fails", 4, members=1, rate=150, padding=2000) as workload:
                until(lambda: metric(broker, "millstream_shared_objects_total") > 0, "nothing is uploaded")
                store.away(SLOW)
                made = metric(broker, "millstream_shared_objects_total")
                workload.wait_progress(600)
                until(lambda: metric(broker, "millstream_shared_objects_total") > made, "a slow bucket gets nothing")
                for how in (STALLED, THROTTLED):
                    store.away(how)
                    until(lambda: is_refused(broker, workload), "producers are not refused")
                    broker.kill()  # what waits is in the write-ahead log
                    broker.start()
                    until(lambda: is_refused(broker, workload), "a start forgets what waits")
                    store.back()
                    workload.wait_progress(600)
            until(lambda: uploaded(broker, "fails", 4), "uploads stand still")
            assert not tier(broker, "verify")["findings"]


def is_refused(broker, workload):
    """Whether as much waits for the bucket as may, and nothing is acknowledged for a second."""
    if metric(broker, "millstream_shared_uncommitted_bytes") < MIB:
        return False
    before = workload.acknowledged
    moment(1)
    return workload.acknowledged == before

"""What ``millstream job merge`` and ``reencode`` do without Spark: the same rewriting, journal and requests on a real
broker, crashed at each step and gone on with.
"""

import uuid
from types import SimpleNamespace

import pytest
from tiering import AT_ONCE, archived, consume, create, expected, only_the_tail_is_local, produce

from millstream.client import Cluster
from millstream.errors import Rejected
from millstream.format.archive import segment_key
from millstream.objects import open_store
from millstream.testing.process import Broker
from millstream.tiers.inspection import manifest_of, segments_of
from millstream.wire.batch import iter_batches, parse_header
from waits import until

pytest.importorskip("pyspark")

from millstream.spark import replacing

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(900)]

RECORDS = 260


class Here:
    """Spark as far as the jobs use it, in this process."""

    def __init__(self):
        self.sparkContext = SimpleNamespace(defaultParallelism=1, parallelize=self._parallelize)

    def _parallelize(self, items, _):
        return SimpleNamespace(map=lambda do: SimpleNamespace(collect=lambda: [do(one) for one in items]))


class Crashed(BaseException):
    """The job dies."""


class World:
    """A broker with an archived topic."""

    def __init__(self, broker, cluster, state):
        self.broker = broker
        self.cluster = cluster
        self.state = state
        self.url = f"file://{broker.data_dir}/objects"
        self.store = open_store(self.url)
        self.topic_id = uuid.UUID(bytes=cluster.metadata(["old"]).topics["old"].topic_id)
        self.owner = replacing.ArchiveId(self.topic_id, 0)

    def segments(self):
        return list(segments_of(self.store, manifest_of(self.store, self.owner)))

    def codecs(self):
        found = set()
        for one in self.segments():
            data = self.store.get(segment_key(self.owner, one), 0, one.size_bytes)
            found |= {parse_header(batch).codec for batch in iter_batches(data)}
        return found

    def run(self, job, steps=10**9):
        """A run of the command, as ``cli.job_rewrite`` has it; it dies after so many bytes' reports."""
        journal, done = replacing.Journal(str(self.state), job), replacing.Done()
        replacing.settle_pending(self.cluster, job, journal, done)
        plan = replacing.plan(self.store, self.topic_id, [0], job, journal.versions)
        left = [steps]

        def advance(_):
            left[0] -= 1
            if left[0] <= 0:
                raise Crashed

        replacing.Rewriting(self.cluster, job, journal, self.url, done, lambda: False).run(Here(), plan, advance)
        replacing.await_manifests(self.store, self.topic_id, journal, done)
        journal.end()
        return done


def merging(segments):
    """A job that joins pairs."""
    return replacing.ReplacingJob("merge", "old", int(2.2 * max(one.size_bytes for one in segments)))


@pytest.fixture
def world(tmp_path):
    with Broker(settings=AT_ONCE) as broker, Cluster(broker.bootstrap, timeout_s=60) as cluster:
        create(broker, "old")
        produce(broker, "old", range(RECORDS))
        until(lambda: len(archived(broker)) > 8 and only_the_tail_is_local(broker), "nothing is archived")
        made = World(broker, cluster, tmp_path / "job")
        until(lambda: list((broker.data_dir / "objects").rglob("manifest")), "no manifest")
        until(lambda: len(made.segments()) > 8, "no manifest of all")
        yield made


def test_a_job_that_dies_at_any_step_is_gone_on_with_and_nothing_is_lost_or_done_twice(world, monkeypatch):
    before = world.segments()
    merge = merging(world.segments())
    ask = replacing.replace_segments

    def dies_before(*_):
        raise Crashed

    def dies_after(*words):
        ask(*words)
        raise Crashed

    for dies in (dies_before, dies_after):
        monkeypatch.setattr(replacing, "replace_segments", dies)
        with pytest.raises(Crashed):
            world.run(merge)
        monkeypatch.setattr(replacing, "replace_segments", ask)
        with pytest.raises(Crashed):
            world.run(merge, steps=1)
    done = world.run(merge)
    assert (done.left_out, done.manifests_late) == ({}, 0)
    after = world.segments()
    assert len(after) < len(before) and after[-1].end_offset >= before[-1].end_offset
    assert consume(world.broker, "old") == expected(range(RECORDS))

    reencode = replacing.ReplacingJob("reencode", "old", codec=4)
    with pytest.raises(Rejected, match="give this one another --id"):
        replacing.Journal(str(world.state), merge)
        replacing.Journal(str(world.state), reencode)
    replacing.Journal(str(world.state), merge).end()
    with pytest.raises(Crashed):
        world.run(reencode, steps=2)
    world.run(reencode)
    assert world.codecs() == {4}
    assert consume(world.broker, "old") == expected(range(RECORDS))
    assert (again := world.run(reencode)).unchanged == len(world.segments()) and not again.groups
    gone = [segment_key(world.owner, one) for one in before]
    until(lambda: not any(map(world.store.head, gone)), "the old objects stay")


def test_of_two_jobs_on_one_partition_the_later_one_leaves_its_groups_out(world, monkeypatch):
    merge = merging(world.segments())
    journal, done = replacing.Journal(str(world.state), merge), replacing.Done()
    plan = replacing.plan(world.store, world.topic_id, [0], merge, {})
    world.state = world.state.with_name("other")
    first = world.run(merge)
    assert first.groups == len(plan[0].groups) > 1
    work = replacing.Rewriting(world.cluster, merge, journal, world.url, done, lambda: False)
    monkeypatch.setattr(replacing, "rewrite", lambda group, url, codec: replacing.Rewritten(group, group.before[0]))
    work.run(Here(), plan, lambda _: None)
    assert (done.groups, sum(done.left_out.values())) == (0, len(plan[0].groups))
    assert consume(world.broker, "old") == expected(range(RECORDS))

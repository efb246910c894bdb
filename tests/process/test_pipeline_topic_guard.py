"""The guard of a topic sink: of two hosts with one pipeline, one writes."""

import contextlib

import pytest

from millstream.client import Cluster
from millstream.client.coordinators import Coordinators
from millstream.client.transactional import MarkedOffset, mark_offset
from millstream.errors import Rejected, Unavailable
from millstream.pipeline.state import SinkState
from millstream.pipeline.tables.guard import TakenOver
from millstream.pipeline.topic_guard import TopicGuard

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(broker):
    with contextlib.closing(Cluster(broker.bootstrap, client_id="test")) as cluster:
        yield cluster


@pytest.fixture
def topic(broker):
    return broker.new_topic(partitions=1)


def guard(topic, place):
    """The guard of a run with the state directory ``place``."""
    return TopicGuard(f"p-{topic}", "s", topic, SinkState(str(place)).identity())


def test_another_state_directory_is_refused_and_takes_over_where_it_is_told_to(cluster, topic, tmp_path):
    one, two = guard(topic, tmp_path / "one"), guard(topic, tmp_path / "two")
    one.inspect(cluster)
    one.claim(cluster)
    one.inspect(cluster)
    one.require(cluster)
    with pytest.raises(Rejected, match="written from another state directory"):
        two.inspect(cluster)
    with pytest.raises(Rejected, match=r"written from another state directory \(host .*, process .*--replay"):
        two.claim(cluster)
    one.require(cluster)
    two.claim(cluster, replay=True)
    with pytest.raises(TakenOver, match="has taken over"):
        one.require(cluster)
    with pytest.raises(Rejected, match="another state directory"):
        guard(topic, tmp_path / "one").claim(cluster)


def test_a_later_run_of_one_state_directory_ends_the_older_one(cluster, topic, tmp_path):
    one, again = guard(topic, tmp_path / "state"), guard(topic, tmp_path / "state")
    one.claim(cluster)
    again.claim(cluster)
    again.require(cluster)
    with pytest.raises(TakenOver):
        one.require(cluster)


def test_of_two_first_runs_at_once_one_is_refused(cluster, topic, tmp_path, monkeypatch):
    one, two = guard(topic, tmp_path / "one"), guard(topic, tmp_path / "two")
    read = one._read

    def meanwhile(coordinators):
        found = read(coordinators)
        two.claim(cluster)
        return found

    monkeypatch.setattr(one, "_read", meanwhile)
    with pytest.raises(Unavailable, match="another run of this pipeline started at the same time"):
        one.claim(cluster)
    two.require(cluster)


def test_the_group_of_somebody_else_is_not_taken(cluster, topic, tmp_path):
    mark_offset(Coordinators(cluster), f"p-{topic}.s", (topic, 0), MarkedOffset(7, ""))
    with pytest.raises(Rejected, match="offsets that no pipeline has committed"):
        guard(topic, tmp_path / "one").claim(cluster)

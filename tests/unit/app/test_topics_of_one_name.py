"""Several topics of one name in a bucket: the newest is recovered, the others are named, and one can be chosen."""

import pytest

from millstream.app.tiers import _described
from millstream.errors import Rejected
from millstream.format.archive import TopicDescription, encode_topic
from sim.engine.objects import MemoryStore

OLD, NEW, OTHER = ("f" + "0" * 31, "1" + "0" * 31, "2" + "0" * 31)


@pytest.fixture
def store():
    """The older topic of the name sorts last."""
    now_ms = iter((1000, 2000, 3000))
    made = MemoryStore(lambda: next(now_ms))
    for name, topic_id in (("clicks", OLD), ("clicks", NEW), ("views", OTHER)):
        made.put(f"topics/{topic_id}/topic", [encode_topic(TopicDescription(name, topic_id, 1, {}))])
    return made


def chosen(store, *names):
    return [
        (topic.topic_id, [(one.topic.topic_id, one.written_ms) for one in others])
        for topic, others in _described(store, list(names))
    ]


def test_the_newest_counts_and_the_others_are_named(store):
    assert chosen(store) == [(NEW, [(OLD, 1000)]), (OTHER, [])]
    assert chosen(store, "clicks") == [(NEW, [(OLD, 1000)])]


def test_an_id_chooses(store):
    assert chosen(store, f"id:{OLD}") == [(OLD, [(NEW, 2000)])]
    with pytest.raises(Rejected, match="it has clicks, views"):
        chosen(store, "id:" + "7" * 32)

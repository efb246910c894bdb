"""What a pipeline names is asked for at once, before Spark starts, and what is missing is told at its place."""

from types import SimpleNamespace

import pytest

pytest.importorskip("pyarrow")

from millstream.errors import Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.pipeline import reach
from millstream.pipeline.missing import Missing
from millstream.pipeline.model import Errors, Pipeline, SideTable, Sink, Source
from millstream.pipeline.reach import NoBroker, await_topics, require_topics

PIPELINE = Pipeline(
    pipeline="p",
    source=Source(topic=["a", "b"]),
    tables={"c": SideTable(topic="c", schema="x string")},
    sinks=[Sink(delta="t"), Sink(topic="out")],
    errors=Errors(topic="letters"),
)
PLACES = {
    "a": ("source", "topic"),
    "b": ("source", "topic"),
    "c": ("tables", "c", "topic"),
    "out": ("sinks", 1, "topic"),
    "letters": ("errors", "topic"),
}


@pytest.fixture
def cluster(monkeypatch):
    """A cluster that has the topics of ``PIPELINE``, and answers what a test says of others."""

    class Cluster:
        def __init__(self):
            self.codes, self.asked, self.error = {}, [], None
            self.timeout_s = 30.0

        def metadata(self, names):
            if self.error is not None:
                raise self.error
            self.asked.append(sorted(names))
            return SimpleNamespace(topics={n: SimpleNamespace(error_code=self.codes.get(n, 0)) for n in names})

    made = Cluster()
    monkeypatch.setattr(reach, "open_logs", lambda _: SimpleNamespace(cluster=made, close=lambda: None))
    return made


def test_all_topics_are_asked_for_at_once(cluster):
    require_topics(PIPELINE)
    require_topics(PIPELINE, sinks=False)
    require_topics(PIPELINE, source=False, sinks=False)
    assert cluster.asked == [["a", "b", "c", "letters", "out"], ["a", "b", "c"], ["c"]]


@pytest.mark.parametrize(("patience_s", "limit_s"), [(None, 5), (30, 30), (60, 30)])
def test_a_person_hears_soon_that_no_broker_answers_and_a_run_waits_for_one(cluster, patience_s, limit_s):
    require_topics(PIPELINE, **({} if patience_s is None else {"patience_s": patience_s}))
    assert cluster.timeout_s == limit_s


def test_a_run_says_soon_that_it_waits_for_a_broker(cluster):
    said, limits = [], []

    def metadata(names):
        limits.append(cluster.timeout_s)
        if len(limits) == 1:
            raise Unavailable("metadata: no broker answers at h:1: [Errno 111] Connection refused", NETWORK)
        return SimpleNamespace(topics={n: SimpleNamespace(error_code=0) for n in names})

    def open_logs(_):
        cluster.timeout_s = 30.0
        return SimpleNamespace(cluster=cluster, close=lambda: None)

    cluster.metadata = metadata
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reach, "open_logs", open_logs)
        await_topics(PIPELINE, said.append)
    assert limits == [2, 30]
    assert len(said) == 1
    assert said[0].startswith("no broker answers at 127.0.0.1:9092 (Connection refused); start the broker")
    assert said[0].endswith("Waiting 30 s for one")


@pytest.mark.parametrize("name", PLACES)
def test_a_missing_topic_is_named_with_its_place_and_the_remedy(cluster, name):
    cluster.codes[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(Missing, match=f"^topic {name} does not exist; 'millstream topic create {name}' makes it$") as e:
        require_topics(PIPELINE)
    assert e.value.path == PLACES[name]


def test_brokers_that_do_not_answer_are_named_and_other_errors_stay(cluster):
    cluster.error = Unavailable("metadata: no broker answers at h:1: [Errno 111] Connection refused", NETWORK)
    with pytest.raises(NoBroker, match=r"^no broker answers at 127\.0\.0\.1:9092 \(Connection refused\); start"):
        require_topics(PIPELINE)
    cluster.error = Unavailable("something else")
    with pytest.raises(Unavailable, match="something else"):
        require_topics(PIPELINE)
    cluster.error, cluster.codes = None, {"a": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    with pytest.raises(Rejected, match="topic a: TOPIC_AUTHORIZATION_FAILED"):
        require_topics(PIPELINE)


NETWORK = ErrorCode.NETWORK_EXCEPTION

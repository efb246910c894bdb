"""Topics that are tables, as declarations: what their values are taken for, and which pipeline that makes."""

import http.server
import json
import threading

import pytest

from millstream.client.schema_registry import registry_access
from millstream.errors import Rejected, Unavailable
from millstream.pipeline.checks import problems_of
from millstream.pipeline.model import Create, Upkeep
from millstream.pipeline.serving import topics
from millstream.pipeline.serving.topics import Decided, TopicTable, decide, declared, subject_type


def at(url):
    return registry_access(url, {})


def table(**more):
    given = {
        "topic": "orders", "topic_id": "0" * 32, "mode": "append", "sink": "iceberg:lake.orders", "key": ("_key",),
        "partition_by": (), "format": "auto",
        "target_lag_ms": 20_000, "on_error": "dead_letter", "delete_with_topic": False, **more,
    }  # fmt: skip
    return TopicTable(**given)


@pytest.fixture
def registry():
    """A registry that answers with what ``answers`` has for a path, 404 otherwise."""
    answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, document = answers.get(self.path, (404, {}))
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([b'{"id": 1}', b'{"id": 2, "who": "x"}', b"{broken"], "json"),
        ([b"[1]", b"plain", b'{"id": 1}'], "string"),
        ([b"\xff\xfe", b"\xff", b"text"], "raw"),
    ],
)
def test_most_of_the_first_records_decide(monkeypatch, values, kind):
    monkeypatch.setattr(topics, "sample", lambda options: values)
    found = decide(table(), "127.0.0.1:1", None)
    assert found.format == kind
    assert (found.schema == {"id": "bigint", "who": "string"}) == (kind == "json")


def test_the_registrys_subject_decides_before_any_record(registry, monkeypatch):
    url, answers = registry
    monkeypatch.setattr(topics, "sample", lambda options: [b"text"])
    assert decide(table(), "127.0.0.1:1", at(url)) == Decided("string")
    answers["/subjects/orders-value/versions/latest"] = 200, {"schema": "{}"}
    assert decide(table(), "127.0.0.1:1", at(url)) == Decided("avro", url)
    answers["/subjects/orders-value/versions/latest"] = 200, {"schemaType": "PROTOBUF"}
    assert decide(table(format="protobuf"), "127.0.0.1:1", at(url)) == Decided("protobuf", url)
    assert decide(table(format="string"), "127.0.0.1:1", at(url)) == Decided("string")
    with pytest.raises(Rejected, match=r"table\.format=avro needs a schema in the registry"):
        decide(table(format="avro"), "127.0.0.1:1", at(url))


def test_a_registry_that_does_not_answer_decides_nothing(registry):
    url, answers = registry
    answers["/subjects/orders-value/versions/latest"] = 501, {}
    assert subject_type(at(url), "orders-value") is None, "a broker without the registry's packages has no subjects"
    answers["/subjects/orders-value/versions/latest"] = 503, {}
    with pytest.raises(Unavailable, match="answers with 503"):
        decide(table(), "127.0.0.1:1", at(url))
    with pytest.raises(Unavailable, match="no schema registry answers"):
        decide(table(), "127.0.0.1:1", at("http://127.0.0.1:1"))


def test_an_empty_topic_is_not_decided(monkeypatch):
    monkeypatch.setattr(topics, "sample", lambda options: [])
    with pytest.raises(Rejected, match="has no records yet"):
        decide(table(), "127.0.0.1:1", None)


@pytest.mark.parametrize("name", ["orders", "_hidden", "a" * 249])
def test_a_declared_topic_is_a_pipeline_without_problems(name):
    pipeline = declared(
        table(topic=name, on_error="drop"), Decided("json", None, {"id": "bigint"}), "b:9092", None, made=True
    )
    assert problems_of(pipeline) == []
    assert (pipeline.trigger.every, pipeline.errors.mode, pipeline.source.schema) == (
        "10000ms",
        "drop",
        {"id": "bigint"},
    )
    (sink,) = pipeline.sinks
    assert (sink.iceberg, sink.name, sink.catalog) == ("lake.orders", "topic-iceberg-lake.orders", None)


@pytest.mark.parametrize(("lag_ms", "every", "keep"), [(20_000, "300s", "3600s"), (1_000, "60s", "600s")])
def test_a_table_of_ones_own_is_looked_after_and_those_of_others_are_left_to_them(lag_ms, every, keep):
    for made, wanted in ((True, Upkeep(every=every, keep=keep)), (False, None)):
        pipeline = declared(table(target_lag_ms=lag_ms), Decided("raw"), "b:9092", None, made=made)
        assert pipeline.sinks[0].upkeep == wanted and problems_of(pipeline) == []


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
@pytest.mark.parametrize("key", [("_key",), ("id",)])
def test_rows_by_key_are_those_of_the_pipelines_mode(mode, key):
    found = declared(table(mode=mode, key=key), Decided("json", None, {"id": "bigint"}), "b:9092", None, made=True)
    assert problems_of(found) == []
    assert (found.sinks[0].mode, found.sinks[0].key) == (mode, list(key))


def test_partitions_are_those_of_a_table_that_is_made():
    parts = ("day(_timestamp)", "bucket(16 id)")
    found = declared(table(partition_by=parts), Decided("json", None, {"id": "bigint"}), "b:9092", None, made=True)
    assert problems_of(found) == []
    assert found.sinks[0].create == Create(partition=["day(_timestamp)", "bucket(16, id)"])
    delta = declared(table(partition_by=parts, sink="delta:t"), Decided("raw"), "b:9092", None, made=True)
    assert "Delta partitions by columns" in problems_of(delta)[0].message


def test_another_sink_is_another_writer():
    first, second = (
        declared(table(sink=sink), Decided("raw"), "b:9092", {"type": "rest"}, made=False).sinks[0]
        for sink in ("delta:/lake/orders", "iceberg:lake.orders")
    )
    assert first.name != second.name
    assert (first.delta, second.catalog) == ("/lake/orders", {"type": "rest"})

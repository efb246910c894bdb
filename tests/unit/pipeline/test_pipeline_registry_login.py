"""How a pipeline's registry is reached: what its declaration says, and what travels to tasks."""

import json
import pickle

import pytest

pytest.importorskip("pyspark")

from millstream.pipeline import wire_schemas
from millstream.pipeline.checks import problems_of
from millstream.pipeline.model import Pipeline, SideTable, Sink, Source
from millstream.pipeline.source import REACH_OPTION, SETTINGS_OPTION, RowsSource, source_options
from millstream.pipeline.task import SourceSettings
from millstream.pipeline.wire_schemas import pinned, registry_of, resolved

URL = "https://registry.example"
SOURCE = {"topic": "o", "format": "avro", "registry": URL}
SECURITY = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "${env:BROKERS_WORD}",
    "basic.auth.user.info": "${env:REGISTRY_USER}",
}


@pytest.fixture
def words(monkeypatch):
    monkeypatch.setenv("BROKERS_WORD", "word-of-the-brokers")
    monkeypatch.setenv("REGISTRY_USER", "bob:own-word")
    monkeypatch.setattr(wire_schemas, "latest_schema", lambda *_: "{}")


def declared(**more):
    source = Source(topic="orders", format="avro", registry=URL)
    given = {"security": SECURITY, "brokers": "b1.example:9092", **more}
    return Pipeline(pipeline="p", source=source, sinks=[Sink(delta="t")], **given)


def login_of(access):
    login = access.places[0].security.login
    return None if login is None else (login.username, login.password)


def test_the_registrys_own_login_is_used_and_brokers_get_none_of_it(words):
    pipeline = pinned(declared(tables={"items": SideTable(topic="items", format="avro", registry=URL)}))
    assert problems_of(declared()) == []
    assert login_of(registry_of(pipeline.source)) == ("bob", "own-word")
    assert login_of(registry_of(pipeline.tables["items"])) == ("bob", "own-word")
    assert not any("basic.auth" in name for name in pipeline.reach)
    brokers_only = {name: text for name, text in SECURITY.items() if not name.startswith("basic")}
    assert login_of(registry_of(pinned(declared(security=brokers_only)).source)) is None
    own = declared(security=brokers_only, brokers="registry.example:9092")
    assert login_of(registry_of(pinned(own).source)) == ("alice", "word-of-the-brokers")


def test_tasks_get_what_the_driver_resolves_and_sparks_options_have_no_secret(words, monkeypatch):
    settings = SourceSettings(pinned(declared()).source, "drop", "run", "reports", None)
    options = source_options(settings, None, {"kafka.bootstrap.servers": "b1.example:9092", "subscribe": "orders"})
    assert "word" not in json.dumps(options).replace("sasl.password", "").replace("BROKERS_WORD", "")
    assert "reached" in options[SETTINGS_OPTION] and "REGISTRY_USER" in options[REACH_OPTION]
    reader = RowsSource(options).streamReader(None)
    monkeypatch.delenv("REGISTRY_USER")
    monkeypatch.delenv("BROKERS_WORD")
    there = pickle.loads(pickle.dumps(reader))
    assert login_of(registry_of(there._source.source)) == ("bob", "own-word")


def test_side_tables_are_resolved_for_tasks(words, monkeypatch):
    table = resolved(pinned(declared(tables={"t": SideTable(topic="t", format="avro", registry=URL)})).tables["t"])
    monkeypatch.delenv("REGISTRY_USER")
    monkeypatch.delenv("BROKERS_WORD")
    assert login_of(registry_of(table)) == ("bob", "own-word")


@pytest.mark.parametrize(
    ("more", "words_of"),
    [
        ({"security": {"basic.auth.user.inf": "x"}}, r"did you mean basic.auth.user.info"),
        (
            {"source": Source(topic="o", format="avro", registry=URL, options={"basic.auth.user.info": "a:b"})},
            "security",
        ),
        ({"source": Source(topic="o", format="avro", registry=URL, reached={"a": "b"})}, "set by the runner"),
    ],
    ids=range(3),
)
def test_what_is_at_another_place_is_told(more, words_of):
    given = {"source": Source(**SOURCE), **more}
    (problem,) = problems_of(Pipeline(pipeline="p", sinks=[Sink(delta="t")], **given))
    assert words_of in problem.message

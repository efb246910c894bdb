"""Commands that used to lose or hide something: what they refuse, and what they say of each name."""

import io
import json
import sys

import pytest
from cli_fakes import FakeAdmin, FakeGroup, FakeProducer, done, failed
from confluent_kafka import KafkaError

from millstream.cli import confluent


@pytest.fixture
def trimming(cluster, monkeypatch):
    """What DeleteRecords was asked, by partition."""
    asked = {}

    def delete_records(self, wanted, **_):
        from types import SimpleNamespace

        asked.update({place.partition: place.offset for place in wanted})
        return {place: done(SimpleNamespace(low_watermark=place.offset)) for place in wanted}

    monkeypatch.setattr(FakeAdmin, "delete_records", delete_records, raising=False)
    cluster.fill("t", b"a", b"b", b"c")
    return asked


def test_trim_past_the_end_deletes_nothing(millstream, trimming):
    outcome = millstream("topic", "trim", "t", "--before", "999999", "--execute")
    assert outcome.code == 1
    assert "ends at offset 3" in outcome.err
    assert not trimming


def test_trim_shows_what_would_go_and_does_it_with_execute(millstream, trimming):
    shown = millstream("topic", "trim", "t", "--before", "2", "--json")
    assert json.loads(shown.out) == [
        {"topic": "t", "partition": 0, "start_offset": 0, "new_start_offset": 2, "records": 2}
    ]
    assert not trimming
    assert "--execute does it" in millstream("topic", "trim", "t", "--before", "2").err
    assert millstream("topic", "trim", "t", "--before", "2", "--execute").code == 0
    assert trimming == {0: 2}


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_a_name_that_cannot_be_deleted_does_not_hide_what_became_of_the_others(millstream, cluster, kind):
    cluster.fill("a"), cluster.fill("b")
    cluster.groups |= {"a": FakeGroup(), "b": FakeGroup()}
    outcome = millstream(kind, "delete", "a", "nope", "b", *(["--execute"] if kind == "topic" else []))
    assert outcome.code == 1
    first, second, third = outcome.err.splitlines()
    assert (first, second) == (f"deleted {kind} 'a'", f"deleted {kind} 'b'")
    assert third.startswith("error: ")
    assert f"no {kind} 'nope'" in third


def test_json_says_it_per_name_too(millstream, cluster):
    cluster.fill("a")
    outcome = millstream("topic", "delete", "a", "nope", "--json", "--execute")
    assert outcome.code == 1
    gone, missing = json.loads(outcome.out)
    assert gone == {"topic": "a", "deleted": True}
    assert (missing["topic"], missing["deleted"]) == ("nope", False)
    assert "there is no topic" in missing["error"]


def test_a_group_without_a_name_is_refused(millstream, cluster):
    cluster.fill("t")
    outcome = millstream("consume", "t", "-g", "")
    assert outcome.code == 2
    assert "--group" in outcome.err


def test_a_property_that_a_topic_does_not_have_cannot_be_unset(millstream, cluster):
    cluster.fill("t")
    cluster.config["t"] = {}
    outcome = millstream("topic", "alter", "t", "--unset", "retention.byte")
    assert outcome.code == 2
    assert "did you mean retention.bytes?" in outcome.err


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"val": "x"}', "val"),
        ('{"key": "k"}', "value"),
        ('{"value": "x", "timestamp": "2026"}', "timestamp"),
        ('{"value": "x", "timestamp": -5}', "timestamp"),
        ('{"value": "x", "headers": {"h": "1"}}', "headers"),
        ('{"value": "x", "headers": [{"nam": "h"}]}', "headers"),
        ('{"value_base64": "%%"}', "value_base64"),
        ('["x"]', "object"),
        ("{", "line 2"),
    ],
)
def test_a_line_that_is_no_record_is_refused_by_line_and_field(millstream, cluster, monkeypatch, line, field):
    stdin = io.TextIOWrapper(io.BytesIO(f'{{"value": "good"}}\n{line}\n'.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    outcome = millstream("produce", "t", "--format", "json")
    assert outcome.code == 1
    complaint = outcome.err.splitlines()[-1]
    assert "line 2" in complaint
    assert field in complaint
    assert "NoneType" not in complaint
    assert [message.value_bytes for message in cluster.topics["t"][0]] == [b"good"], "what stood before it was sent"


def test_an_interrupt_says_how_many_records_are_confirmed(millstream, cluster, monkeypatch):
    class Interrupted(FakeProducer):
        def produce(self, topic, value, **rest):
            if value == b"3":
                raise KeyboardInterrupt
            super().produce(topic, value, **rest)

    monkeypatch.setattr(confluent, "Producer", lambda configuration, logger: Interrupted(cluster, configuration))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n2\n3\n4\n")))
    outcome = millstream("produce", "t")
    assert outcome.code == 130
    assert "2 records are confirmed, 1 are not and may or may not be stored" in outcome.err


def test_a_failed_creation_does_not_hide_the_others(millstream, cluster, monkeypatch):
    monkeypatch.setattr(
        FakeAdmin,
        "create_topics",
        lambda self, wanted, **_: {
            topic.topic: done(None) if topic.topic != "bad" else failed(KafkaError.TOPIC_EXCEPTION, "no")
            for topic in wanted
        },
    )
    outcome = millstream("topic", "create", "good", "bad", "better")
    assert outcome.code == 1
    assert "created topic 'good'\ncreated topic 'better'\n" in outcome.err

"""Validators, partition selectors and serializers: by name, as callables, and what they refuse."""

import json
import random

import pytest

from millstream.errors import Corruption, Rejected
from millstream.events import InvalidDescription, InvalidEvent, make_selector, make_serializer, make_validator
from millstream.events.selectors import murmur2

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
    },
    "required": ["name"],
}

RULE = {
    "source": ["acme.orders", {"prefix": "acme."}],
    "detail": {
        "state": [{"anything-but": ["initializing", "failed"]}],
        "c-count": [{"numeric": [">", 0, "<=", 5]}],
        "file": [{"suffix": ".png"}],
        "who": [{"equals-ignore-case": "Alice"}],
        "path": [{"wildcard": "dir/*/file\\*"}],
        "error": [{"exists": False}],
        "none": [None],
    },
    "detail.region": ["eu", "us"],
    "$or": [{"level": [{"numeric": ["=", 3]}]}, {"urgent": [True]}],
}
EVENT = {
    "source": "acme.anything",
    "detail": {
        "state": "running",
        "c-count": 5,
        "file": "a.png",
        "who": "ALICE",
        "path": "dir/one/two/file*",
        "none": None,
        "region": ["de", "eu"],
    },
    "level": 3.0,
}


def changed(**detail):
    return {**EVENT, "detail": {**EVENT["detail"], **detail}}


@pytest.mark.parametrize("description", [None, {}, {"type": "default"}, {"type": "default", "x": 1}])
def test_the_default_accepts_everything(description):
    make_validator(description).validate(object(), 5)


def test_a_schema_accepts_and_refuses_with_the_place():
    validator = make_validator({"type": "schema", "schema": SCHEMA})
    validator.validate({"name": "a", "age": 3.5}, 0)
    with pytest.raises(InvalidEvent, match=r"at \$\.age: 'old' is not of type 'number'"):
        validator.validate({"name": "a", "age": "old"}, 0)
    assert validator.description == {"type": "schema", "schema": SCHEMA}


@pytest.mark.parametrize("make", [make_validator, make_serializer, make_selector])
@pytest.mark.parametrize("description", [{"type": "unknown"}, {"type": 5}, [], {"type": "schema"}])
def test_a_description_that_makes_nothing_is_refused(make, description):
    with pytest.raises(InvalidDescription):
        make(description)


@pytest.mark.parametrize(
    ("make", "kind"), [(make_validator, "schema"), (make_validator, "eventbridge"), (make_serializer, "schema")]
)
def test_a_schema_that_is_no_object_is_a_value_error(make, kind):
    with pytest.raises(ValueError, match="is an object"):
        make({"type": kind, "schema": "not-an-object"})
    with pytest.raises(InvalidDescription, match="needs 'schema'"):
        make({"type": kind})


def test_a_schema_that_is_no_schema_is_refused():
    with pytest.raises(InvalidDescription, match="no JSON Schema"):
        make_validator({"type": "schema", "schema": {"type": "strange"}})


def test_a_callable_refuses_by_an_exception_or_by_false():
    def accepts(metadata, data_bytes):
        if metadata["n"] < 0:
            raise RuntimeError("negative")
        return data_bytes < 10

    validator = make_validator(accepts)
    validator.validate({"n": 1}, 9)
    with pytest.raises(InvalidEvent, match="negative"):
        validator.validate({"n": -1}, 0)
    with pytest.raises(InvalidEvent):
        validator.validate({"n": 1}, 10)


def test_a_pattern_with_every_comparison_accepts_its_event():
    make_validator({"type": "eventbridge", "schema": RULE}).validate(EVENT, 0)


@pytest.mark.parametrize(
    "event",
    [
        {**EVENT, "source": "other"},
        changed(state="failed"),
        changed(**{"c-count": 6}),
        changed(**{"c-count": 0}),
        changed(**{"c-count": True}),
        changed(**{"c-count": "5"}),
        changed(file="a.jpg"),
        changed(file=5),
        changed(who="Bob"),
        changed(path="dir/one/fileX"),
        changed(error="there"),
        changed(none=0),
        changed(region=["de"]),
        {**EVENT, "level": 4},
        {**EVENT, "level": 4, "urgent": 1},
        {key: value for key, value in EVENT.items() if key != "detail"},
        "no object",
    ],
)
def test_a_pattern_refuses_what_differs_in_one_field(event):
    with pytest.raises(InvalidEvent):
        make_validator({"type": "eventbridge", "schema": RULE}).validate(event, 0)


def test_or_and_anything_but_by_texts():
    validator = make_validator(
        {
            "type": "eventbridge",
            "schema": {
                "a": [{"anything-but": {"prefix": ["x", "y"]}}],
                "b": [{"prefix": {"equals-ignore-case": "AB"}}],
            },
        }
    )
    validator.validate({"a": "z", "b": "abc"}, 0)
    for event in ({"a": "xz", "b": "abc"}, {"b": "abc"}, {"a": "z", "b": "cab"}):
        with pytest.raises(InvalidEvent):
            validator.validate(event, 0)
    make_validator({"type": "eventbridge", "schema": {"$or": [{"a": [1]}, {"b": [1]}]}}).validate({"b": 1}, 0)


@pytest.mark.parametrize(
    "pattern",
    [
        {},
        {"a": []},
        {"a": "x"},
        {"a": [["x"]]},
        {"a": [{"unknown": 1}]},
        {"a": [{"prefix": 1}]},
        {"a": [{"prefix": "a", "suffix": "b"}]},
        {"a": [{"prefix": {"suffix": "b"}}]},
        {"a": [{"numeric": [">"]}]},
        {"a": [{"numeric": ["!", 1]}]},
        {"a": [{"numeric": [">", True]}]},
        {"a": [{"exists": "yes"}]},
        {"a": [{"wildcard": "a**b"}]},
        {"a": [{"anything-but": []}]},
        {"a": [{"anything-but": {"numeric": ["=", 1]}}]},
        {"$or": [{"a": [1]}]},
        {"$or": {}},
    ],
)
def test_a_pattern_outside_of_the_language_is_refused_when_it_is_made(pattern):
    with pytest.raises(InvalidDescription):
        make_validator({"type": "eventbridge", "schema": pattern})


def test_a_pattern_nests_to_a_limit():
    pattern = {"a": [1]}
    for _ in range(70):
        pattern = {"a": pattern}
    with pytest.raises(InvalidDescription, match="levels"):
        make_validator({"type": "eventbridge", "schema": pattern})


def test_the_default_selector_takes_turns_and_wraps_a_wanted_partition():
    selector = make_selector(None)
    assert [selector.select({}, None, 3) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert selector.select({}, 7, 3) == 1


def test_a_key_goes_where_kafka_sends_it():
    # Hashes from Apache Kafka's own test of its partitioner.
    for text, hashed in ((b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)):
        assert murmur2(text) == hashed & 0xFFFFFFFF
    selector = make_selector({"type": "key", "key": "user.id"})
    places = {selector.select({"user": {"id": f"u{n}"}}, None, 8) for n in range(100)}
    assert places == set(range(8))
    assert len({selector.select({"user": {"id": 5}}, None, 8) for _ in range(10)}) == 1
    assert [selector.select({"user": 5}, None, 8) for _ in range(3)] == [0, 1, 2]
    assert selector.select({"user": {"id": "x"}}, 9, 8) == 1


def test_a_selector_of_the_program_is_asked():
    assert make_selector(lambda metadata, wanted, count: metadata["n"]).select({"n": 10}, None, 4) == 2
    with pytest.raises(Rejected, match="failed: boom"):
        make_selector(lambda *_: (_ for _ in ()).throw(RuntimeError("boom"))).select({}, None, 4)
    with pytest.raises(Rejected, match="not a number"):
        make_selector(lambda *_: "x").select({}, None, 4)


def test_the_default_serializer_writes_json():
    serializer = make_serializer(None)
    assert serializer.serialize({"a": [1, None, "ä"]}) == '{"a":[1,null,"ä"]}'.encode()
    assert serializer.deserialize(memoryview(b'{"a":1}')) == {"a": 1}
    with pytest.raises(Rejected, match="JSON cannot express"):
        serializer.serialize({1j: 2})
    with pytest.raises(Corruption):
        serializer.deserialize(b"{")


def test_the_schema_serializer_leaves_out_what_the_schema_says():
    serializer = make_serializer({"type": "schema", "schema": SCHEMA})
    event = {"name": "detector", "age": 2.5, "tags": ["a", "b"], "at": {"x": 1, "y": -2}}
    data = serializer.serialize(event)
    assert serializer.deserialize(data) == event
    assert b"name" not in data
    assert len(data) < len(json.dumps(event)) / 2


def test_any_metadata_come_back_from_the_schema_serializer():
    serializer = make_serializer({"type": "schema", "schema": SCHEMA})
    for seed in range(200):
        rng = random.Random(seed)
        event = {"name": "n" * rng.randrange(5)}
        if rng.random() < 0.5:
            event["age"] = rng.choice((1, 1.5, -(1 << 40)))
        if rng.random() < 0.5:
            event["tags"] = ["t"] * rng.randrange(3)
        if rng.random() < 0.5:
            event["at"] = {name: rng.randrange(100) for name in rng.sample(("x", "y", "other"), rng.randrange(4))}
        if rng.random() < 0.5:
            event["extra"] = rng.choice((None, [1, {"deep": [True]}], {"a": 1}, "text"))
        assert serializer.deserialize(serializer.serialize(event)) == event, seed


@pytest.mark.parametrize(
    "event", [5, {"name": 5}, {"name": "a", "age": True}, {"name": "a", "tags": ["a", 1]}, {"at": []}]
)
def test_a_value_of_another_type_is_refused(event):
    with pytest.raises(Rejected, match="schema cannot express"):
        make_serializer({"type": "schema", "schema": SCHEMA}).serialize(event)


def test_bytes_of_another_schema_are_corruption():
    serializer = make_serializer({"type": "schema", "schema": SCHEMA})
    data = serializer.serialize({"name": "a", "at": {"x": 1}})
    other = make_serializer({"type": "schema", "schema": {"type": "object", "properties": {"z": {}}}})
    with pytest.raises(Corruption):
        other.deserialize(data)
    for size in range(len(data)):
        with pytest.raises(Corruption):
            serializer.deserialize(data[:size])

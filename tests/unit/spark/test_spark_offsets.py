"""The offsets that a checkpoint holds: their text is a promise to every later release."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import Rejected
from millstream.spark.offsets import Position, StreamOffset, TopicPositions, read_offset

POSITIONS = st.builds(
    Position, st.integers(0, 2**62), st.integers(-1, 2**31 - 1), st.integers(0, 10_000), st.integers(-1, 2**62)
)
TOPICS = st.builds(TopicPositions, st.text(min_size=1, max_size=20), st.dictionaries(st.integers(0, 999), POSITIONS))
OFFSETS = st.builds(
    StreamOffset, st.dictionaries(st.uuids().map(lambda u: u.hex), TOPICS, max_size=4), st.integers(0, 99)
)


def test_version_1_is_this_text():
    offset = StreamOffset(
        {
            "b" * 32: TopicPositions("payments", {10: Position(5, 0, 1), 2: Position(7, 3, 0, 4)}),
            "a" * 32: TopicPositions("orders", {0: Position(1200, 3, 2)}),
        },
        bundles=1,
    )
    assert json.dumps(offset.to_json()) == (
        '{"bundles": 1, "topics": {"' + "a" * 32 + '": {"n": "orders", "p": {"0": [1200, 3, 2]}}, '
        '"' + "b" * 32 + '": {"n": "payments", "p": {"2": [7, 3, 0, 4], "10": [5, 0, 1]}}}, "v": 1}'
    )


@given(OFFSETS)
def test_what_is_written_is_read_back_and_written_the_same(offset):
    text = json.dumps(offset.to_json())
    again = read_offset(json.loads(text))
    assert json.dumps(again.to_json()) == text
    assert again.reads_the_same(offset)


def test_how_it_is_cut_does_not_make_a_position():
    one = StreamOffset({"a": TopicPositions("t", {0: Position(5, 1, 1)})})
    other = StreamOffset({"a": TopicPositions("t", {0: Position(5, 2, 8)})}, bundles=3)
    further = StreamOffset({"a": TopicPositions("t", {0: Position(6, 1, 1)})})
    assert one.reads_the_same(other)
    assert not one.reads_the_same(further)


def test_a_newer_version_is_refused():
    with pytest.raises(Rejected, match="version 2"):
        read_offset({"v": 2, "topics": {}})


@pytest.mark.parametrize(
    "decoded", [{"v": 1}, {"v": 1, "topics": {"a": {}}}, {"v": 1, "topics": {"a": {"n": "t", "p": {"x": [1]}}}}]
)
def test_damaged_offsets_are_refused(decoded):
    with pytest.raises(Rejected, match="damaged"):
        read_offset(decoded)


def test_offsets_of_the_kafka_connector_are_refused_with_a_reason():
    with pytest.raises(Rejected, match="version None"):
        read_offset({"orders": {"0": 23}})

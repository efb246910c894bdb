"""The harness itself: it covers what is served, sees what is planted, and encodes what the codec encodes."""

from random import Random

import pytest

from differential import odd
from differential.compare import ABSENT, Known, differences, judge, known_differences, not_served
from differential.good import GOOD
from differential.plain import Names, ordered, plain
from differential.table import Case, Input, all_cases, all_inputs, few
from differential.talk import batch
from millstream.kafka.served import SERVED, SHARE_GROUPS, STREAMS_GROUPS, advertised_versions
from millstream.wire.apis import APIS
from millstream.wire.codec import encode_message
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millstream.wire.messages.metadata import MetadataResponse, MetadataResponseTopic

OWN_APIS = {key for key in SERVED if key > 15_000}
"""Those of event topics, which Apache Kafka does not have."""
COMPARED = set(SERVED) - OWN_APIS - SHARE_GROUPS - STREAMS_GROUPS
"""APIs whose answers are recorded. Those of share groups and of streams groups are compared by the suites of Kafka's
clients instead.
"""
CASE = Case("planted", 3, (0, 1), lambda t: None)
AT = Input(CASE, 1)


def test_every_api_that_is_served_is_asked_in_every_version():
    played = {(at.case.api_key, at.version) for at in all_inputs()}
    served = {(key, version) for key in COMPARED for version in range(APIS[key].versions[0], APIS[key].versions[1] + 1)}
    assert played >= served, sorted(served - played)
    assert set(advertised_versions()) == set(SERVED)


def test_the_few_that_are_always_played_cover_every_version_too():
    played = {(at.case.api_key, at.version) for at in few(all_inputs(slow=False))}
    assert played >= {(at.case.api_key, at.version) for at in all_inputs()}


def test_every_api_that_is_served_has_a_good_request_to_spoil():
    assert set(GOOD) >= COMPARED, [APIS[key].name for key in SERVED if key not in GOOD]


def test_there_are_at_least_300_inputs_of_our_own_making():
    assert len(all_inputs()) >= 1000
    assert len([at for at in all_inputs() if not at.case.made]) >= 300


def test_what_is_not_served_is_not_served():
    listed = [api["key"] for api in not_served()]
    assert not set(listed) & set(SERVED), "take it out of not_served.toml"
    assert listed == sorted(set(listed)) and all(api["name"] and api["reason"] for api in not_served())


def test_every_known_difference_is_about_a_case_and_has_a_reason():
    titles = [one.title for one in all_cases()]
    for entry in known_differences():
        assert len(entry.reason) > 10
        assert judge([], [entry], all_cases()).stale == [entry], f"no case is called {entry.case}: {titles[:5]}…"


@pytest.mark.parametrize("key", sorted(APIS))
def test_the_odd_encoder_writes_what_the_codec_writes(key):
    import sys
    from pathlib import Path

    sys.path.append(str(Path(__file__).parents[1] / "props"))
    from wire_samples import sample

    rng = Random(key)
    for cls in (APIS[key].request, APIS[key].response):
        for version in range(APIS[key].versions[0], APIS[key].versions[1] + 1):
            message = sample(rng, cls, version)
            assert odd.encode(message, version) == bytes(encode_message(message, version)), (cls, version)


def test_a_poisoned_field_is_the_only_thing_that_changes():
    message = MetadataResponse(topics=[MetadataResponseTopic(name="a")], controller_id=5)
    good, bad = odd.encode(message, 1), odd.encode(message, 1, {"topics.0.name": b"\xff\xff"})
    assert bad == good.replace(b"\0\1a", b"\xff\xff")


def test_a_planted_difference_is_found_where_it_is():
    kafka = {"1 X": {"topics": [{"name": "a", "error_code": 3}, {"name": "b", "error_code": 0}]}, "2 Y": "kept"}
    ours = {"1 X": {"topics": [{"name": "b", "error_code": 0}, {"name": "a", "error_code": 5}]}, "2 Y": "kept"}
    (found,) = differences(AT, kafka, ours)
    assert (found.path, found.kafka, found.ours) == ("1 X.topics.a.error_code", 3, 5)


@pytest.mark.parametrize(
    ("kafka", "ours", "path"),
    [
        ({"1 X": {"a": 1}}, {"1 X": "the connection is closed"}, "1 X"),
        ({"1 X": {"a": None}}, {"1 X": {"a": ""}}, "1 X.a"),
        ({"1 X": {"a": False}}, {"1 X": {"a": 0}}, "1 X.a"),
        ({"1 X": {"a": []}}, {"1 X": {"a": [7]}}, "1 X.a.0"),
        ({"1 X": {"a": [1, 2]}}, {"1 X": {"a": [2, 1]}}, "1 X.a.0"),
        ({"1 X": {"t": [{"name": "a"}]}}, {"1 X": {"t": [{"name": "a"}, {"name": "a"}]}}, "1 X.t.a#2"),
        ({"1 X": {}, "2 Y": {}}, {"1 X": {}}, "2 Y"),
    ],
)
def test_shapes_and_types_are_compared(kafka, ours, path):
    assert differences(AT, kafka, ours)[0].path == path


def test_differences_are_new_known_or_stale():
    found = differences(AT, {"1 X": {"a": 1, "b": 1}}, {"1 X": {"a": 2, "b": 2}})
    entries = [
        Known("Metadata: plant*", "1 X.a", "because it is planted"),
        Known("Metadata: plant*", "1 X.b", "only in another version", versions=(5, 9)),
        Known("Metadata: plant*", "1 X.c", "never happens"),
        Known("Fetch: *", "1 X.c", "is not run"),
    ]
    verdict = judge(found, entries, [CASE])
    assert [one.path for one in verdict.new] == ["1 X.b"]
    assert [one.path for one, _ in verdict.known] == ["1 X.a"]
    assert verdict.stale == entries[1:3]
    assert judge(found, entries, [CASE], absent=[CASE]).stale == []


def test_what_no_two_brokers_share_is_taken_out():
    names = Names("abcdZ00001", 9092)
    names.topics[b"\1" * 16] = "a"
    part = PartitionData(partition_index=0, high_watermark=1, records=batch(1))
    answer = FetchResponse(session_id=77, responses=[FetchableTopicResponse("", b"\1" * 16, [part])])
    seen = plain(answer, 13, names)
    assert seen["session_id"] == "a session"
    assert seen["responses"][0]["topic_id"] == "id of a"
    assert seen["responses"][0]["partitions"][0]["records"][0]["records"] == [[0, 1_700_000_000_000, "k0", "v0", []]]
    assert names.text("a-abcdZ00001 and a") == "a and a"
    assert ordered([{"name": "b"}, {"name": "a"}]) == [{"name": "a"}, {"name": "b"}]
    assert ordered([2, 1]) == [2, 1]


def test_topics_of_other_cases_are_left_out():
    names = Names("abcdZ00001", 9092)
    listed = [MetadataResponseTopic(name=name) for name in ("a-abcdZ00001", "a-abcdZ00002", "__consumer_offsets", "b")]
    assert [one["name"] for one in plain(MetadataResponse(topics=listed), 1, names)["topics"]] == ["a", "b"]


def test_absent_is_no_value_that_a_broker_sends():
    assert differences(AT, {"1 X": {"a": ABSENT}}, {"1 X": {"a": "other"}})

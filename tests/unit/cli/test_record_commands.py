"""``millstream produce`` and ``consume``: lines in, lines out, and the group that remembers."""

import io
import json
import sys
import threading
from types import SimpleNamespace

import pytest
from cli_fakes import FakeConsumer, FakeGroup, FakeMessage, FakeReader
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.record_input import record_from_json
from millstream.cli.records import compile_template, record_to_json
from millstream.errors import Corruption


@pytest.fixture
def stdin(monkeypatch):
    def give(data):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False))

    return give


def stored(cluster, topic="t"):
    return [(message.key_bytes, message.value_bytes) for message in cluster.topics[topic][0]]


def test_a_line_is_a_value(millstream, cluster, stdin):
    stdin(b"one\ntwo\r\n\nlast")
    outcome = millstream("produce", "t")
    assert outcome.code == 0
    assert stored(cluster) == [(None, b"one"), (None, b"two"), (None, b""), (None, b"last")]
    assert outcome.out == ""
    assert outcome.err.startswith("sent to 't': 4 records, 10 B in ")


def test_keys_headers_and_count(millstream, cluster, stdin):
    stdin(b"a\tx:1\nb\ty\nc\tz\n")
    outcome = millstream(
        "produce", "t", "--key-separator", "\\t", "--count", 2, "-H", "source=test", "-H", "n=a=b", "--json"
    )
    assert json.loads(outcome.out)["records"] == 2
    assert stored(cluster) == [(b"a", b"x:1"), (b"b", b"y")]
    assert cluster.topics["t"][0][0].header_list == [("source", b"test"), ("n", b"a=b")]


def test_nothing_is_waited_for_behind_the_last_record_that_counts(millstream, cluster, monkeypatch):
    def lines():
        yield b"one\n"
        yield b"two\n"
        raise AssertionError("whoever types would wait for the command, and it for a third line")

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=lines(), isatty=lambda: False))
    assert millstream("produce", "t", "--count", 2).code == 0
    assert stored(cluster) == [(None, b"one"), (None, b"two")]


def test_one_key_for_all_and_a_partition(millstream, cluster, stdin):
    cluster.topics["t"] = [[], []]
    stdin(b"v\n")
    millstream("produce", "t", "--key", "k", "--partition", 1)
    assert [(message.key_bytes, message.value_bytes) for message in cluster.topics["t"][1]] == [(b"k", b"v")]


def test_delivery_options_reach_the_client(millstream, cluster, stdin):
    stdin(b"")
    millstream("produce", "t", "--acks", "1", "--compression", "zstd", "--idempotent", "--timeout", 2)
    configuration = cluster.configurations[-1]
    assert configuration["acks"] == "1"
    assert configuration["compression.type"] == "zstd"
    assert configuration["enable.idempotence"] is True
    assert configuration["message.timeout.ms"] == 2000


def test_a_file_is_read_and_a_missing_one_is_named(millstream, cluster, tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    assert millstream("produce", "t", "--file", file).code == 0
    assert stored(cluster) == [(None, b"one"), (None, b"two")]
    outcome = millstream("produce", "t", "--file", tmp_path / "absent")
    assert (outcome.code, outcome.err) == (1, f"error: {tmp_path}/absent cannot be read: no such file or directory\n")


def test_a_line_without_the_separator_stops_after_what_came_before(millstream, cluster, stdin):
    stdin(b"k:v\nnothing\nk:w\n")
    outcome = millstream("produce", "t", "--key-separator", ":")
    assert outcome.code == 1
    assert "line 2 has no ':' between key and value" in outcome.err
    assert stored(cluster) == [(b"k", b"v")]


def test_a_refused_record_is_reported_with_counts(millstream, cluster, stdin):
    cluster.refuse_value = b"big"
    stdin(b"one\nbig\n")
    outcome = millstream("produce", "t")
    assert outcome.code == 1
    assert "larger than topic 't' allows" in outcome.err
    assert "(1 record was stored, 1 not)" in outcome.err
    assert "1 record, 3 B" in outcome.err


def test_json_lines_carry_keys_headers_tombstones_and_objects(millstream, cluster, stdin):
    lines = [
        {"key": "k", "value": None},
        {"value": {"a": 1}},
        {"key_base64": "/w==", "value": "v", "headers": [{"name": "h", "value": "x"}], "timestamp": 5},
    ]
    stdin("\n".join(map(json.dumps, lines)).encode())
    assert millstream("produce", "t", "--format", "json").code == 0
    assert stored(cluster) == [(b"k", None), (None, b'{"a": 1}'), (b"\xff", b"v")]
    last = cluster.topics["t"][0][2]
    assert (last.header_list, last.timestamp_ms) == ([("h", b"x")], 5)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1]",
        b'{"headers": [1]}',
        b'{"headers": [{}]}',
        b'{"key_base64": "?"}',
        b'{"timestamp": 1e400}',
        b'{"timestamp": 9223372036854775808}',
        b"[" * 100_000,
    ],
    ids=lambda line: line[:24].decode(),
)
def test_bad_json_names_the_line(line):
    with pytest.raises(CommandFailed, match="line 3 is not a record"):
        record_from_json(line, 3)


def test_bad_json_is_said_in_whole_words():
    with pytest.raises(CommandFailed, match=r"\(JSON is malformed: invalid character"):
        record_from_json(b"nonsense", 1)
    with pytest.raises(CommandFailed, match=r"\(object contains unknown field `val`\)"):
        record_from_json(b'{"val": 1}', 1)


@given(
    st.one_of(st.none(), st.binary()), st.one_of(st.none(), st.binary()), st.lists(st.tuples(st.text(), st.binary()))
)
def test_json_of_a_record_reads_back_as_the_same_record(key, value, headers):
    message = FakeMessage("t", 0, 7, value, key, headers, timestamp_ms=123)
    line = record_to_json(message)
    assert line.count(b"\n") == 1
    record = record_from_json(line, 1)
    assert (record.key, record.value, list(record.headers), record.timestamp_ms) == (key, value, headers, 123)


def test_templates_put_bytes_through():
    fill = compile_template("{topic}/{partition}@{offset}\\t{key}={value} {headers} {timestamp}")
    message = FakeMessage("t", 1, 2, b"\xff{key}", None, [("a", b"b"), ("c", None)])
    assert fill(message) == b"t/1@2\t=\xff{key} a=b,c= 1700000000000\n"


@pytest.mark.parametrize("template", ["{value", "{key} {value ", '{"v": {value'])
def test_a_field_without_its_closing_brace_is_refused(template):
    with pytest.raises(WrongUsage, match=r"\{value has no closing brace, expected \{value\}"):
        compile_template(template)


def test_braces_around_fields_are_text():
    compile_template('{"key": "{key}", "valued": {value}}')


def test_consume_prints_values_from_the_beginning(millstream, cluster):
    cluster.fill("t", b"one", b"two")
    outcome = millstream("consume", "t", "--exit-at-end")
    assert (outcome.code, outcome.out, outcome.err) == (0, "one\ntwo\n", "")
    assert cluster.groups == {}
    assert cluster.configurations[-1]["enable.auto.commit"] is False


def test_consume_from_an_offset_past_the_end_says_so(millstream, cluster):
    cluster.fill("t", b"a", b"b")
    past = millstream("consume", "t", "--from", "99", "--exit-at-end")
    assert (past.code, past.out) == (0, "")
    assert past.err == "no partition of topic 't' has offset 99 yet; reads from the ends\n"
    assert millstream("consume", "t", "--from", "1", "--exit-at-end").err == ""


def test_ctrl_c_is_the_ordinary_end(millstream, cluster):
    cluster.fill("t", b"one")
    outcome = millstream("consume", "t")
    assert (outcome.code, outcome.out, outcome.err) == (0, "one\n", "")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("beginning", ["0", "1", "2"]),
        ("end", []),
        ("1", ["1", "2"]),
        ("99", []),
        ("end-1", ["2"]),
        ("end - 2", ["1", "2"]),
        ("latest-99", ["0", "1", "2"]),
        ("1h", []),
        ("36500d", ["0", "1", "2"]),
        ("2023-11-14T22:13:20+00:00", ["0", "1", "2"]),
        ("2100-01-01", []),
    ],
)
def test_consume_begins_where_it_is_told(millstream, cluster, where, expected):
    cluster.fill("t", b"a", b"b", b"c")
    outcome = millstream("consume", "t", "--from", where, "--exit-at-end", "--format", "{offset}")
    assert outcome.out.split() == expected


def test_consume_reads_several_topics_and_those_of_a_pattern(millstream, cluster):
    for name in ("a-1", "a-2", "b", "__internal"):
        cluster.fill(name, name.encode())
    assert sorted(millstream("consume", "a-1", "b", "-e").out.split()) == ["a-1", "b"]
    assert sorted(millstream("consume", "--pattern", "a-.*|.*internal", "-e").out.split()) == ["a-1", "a-2"]
    for words, said in (
        ((), "give either the names of topics or --pattern REGEX"),
        (("b", "--pattern", "a"), "give either the names of topics or --pattern REGEX"),
        (("--pattern", "("), "is no regular expression"),
        (("b", "a-1", "-p", "0"), "--partition is for one topic"),
    ):
        outcome = millstream("consume", *words)
        assert (outcome.code, said in outcome.err) == (2, True), outcome.err
    assert "no topic matches 'c.*'" in millstream("consume", "--pattern", "c.*").err


def test_a_distance_that_is_none_is_refused_with_what_is_expected(millstream, cluster):
    cluster.fill("t", b"a")
    for where in ("end-", "end-x", "1x", "h", "1.0.0h"):
        outcome = millstream("consume", "t", "--from", where)
        assert (outcome.code, "a time ago such as 30m" in outcome.err) == (2, True), where


def test_consume_counts_and_picks_partitions(millstream, cluster):
    cluster.topics["t"] = [[FakeMessage("t", 0, 0, b"zero")], [FakeMessage("t", 1, i, b"%d" % i) for i in range(5)]]
    assert millstream("consume", "t", "--partition", 1, "--count", 3).out == "0\n1\n2\n"
    outcome = millstream("consume", "t", "--partition", 2)
    assert (outcome.code, outcome.err) == (
        2,
        "error: --partition: topic 't' has no partition 2, expected one of 0 to 1\n",
    )


def test_records_before_a_failure_are_printed_before_it_is_reported(millstream, cluster, monkeypatch):
    cluster.fill("t", b"one", b"two")
    whole = FakeReader.read_round

    def broken(reader):
        yield from whole(reader)
        raise Corruption("t-0 at offset 2: checksum does not match")

    monkeypatch.setattr(FakeReader, "read_round", broken)
    outcome = millstream("consume", "t")
    assert (outcome.code, outcome.out) == (1, "one\ntwo\n")
    assert outcome.err == "error: topic 't': t-0 at offset 2: checksum does not match\n"


def test_json_output_is_one_object_a_line(millstream, cluster):
    cluster.fill("t", b"one", b"\xff")
    lines = [json.loads(line) for line in millstream("consume", "t", "--json", "-e").out.splitlines()]
    assert lines[0] == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": 1_700_000_000_000,
        "key": None,
        "value": "one",
    }
    assert lines[1]["value_base64"] == "/w=="


def test_a_group_remembers_exactly_what_was_printed(millstream, cluster):
    cluster.fill("t", b"a", b"b", b"c")
    assert millstream("consume", "t", "--group", "g", "--count", 2).out == "a\nb\n"
    assert cluster.groups["g"].committed == {("t", 0): 2}
    assert millstream("consume", "t", "--group", "g", "--exit-at-end").out == "c\n"
    assert millstream("consume", "t", "--group", "g", "--exit-at-end").out == ""
    assert cluster.groups["g"].committed == {("t", 0): 3}


def test_a_group_does_not_commit_what_could_not_be_written_out(millstream, cluster, monkeypatch):
    cluster.fill("t", b"a", b"b", b"c")

    def full():
        raise CommandFailed("the output cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr("millstream.cli.consume.emit_now", full)
        assert millstream("consume", "t", "--group", "g", "--count", 2).code == 1
    assert cluster.groups["g"].committed == {}
    assert millstream("consume", "t", "--group", "g", "--exit-at-end").out == "a\nb\nc\n"


def test_a_group_is_not_waited_for_longer_than_the_timeout(millstream, cluster, monkeypatch):
    cluster.fill("t", b"a")
    answered = threading.Event()
    monkeypatch.setattr(FakeConsumer, "commit", lambda consumer, asynchronous: answered.wait(60))
    outcome = millstream("consume", "t", "--group", "g", "--timeout", 0.1)
    answered.set()
    assert (outcome.code, outcome.out) == (1, "a\n")
    assert "group 'g': the last printed records may not be committed" in outcome.err
    assert "no answer within 0.1 s" in outcome.err


def test_a_refused_commit_is_an_error_and_the_group_is_left(millstream, cluster, monkeypatch):
    cluster.fill("t", b"a")
    left = []

    def refuse(consumer, asynchronous):
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    monkeypatch.setattr(FakeConsumer, "commit", refuse)
    monkeypatch.setattr(FakeConsumer, "close", lambda consumer: left.append(consumer))
    outcome = millstream("consume", "t", "--group", "g")
    assert (outcome.code, outcome.out, len(left)) == (1, "a\n", 1)
    assert "group 'g'" in outcome.err


def test_consuming_an_unknown_topic_is_an_error(millstream, cluster):
    cluster.groups["g"] = FakeGroup()
    for words in ((), ("--group", "g")):
        outcome = millstream("consume", "nope", *words)
        assert outcome.code == 1
        assert "there is no topic 'nope'" in outcome.err


def test_people_see_the_key_too(millstream, cluster, monkeypatch):
    cluster.fill("t", b"plain", b"keyed")
    cluster.topics["t"][0][1].key_bytes = b"k"
    assert millstream("consume", "t", "-e").out == "plain\nkeyed\n"
    monkeypatch.setattr("millstream.cli.consume.sys.stdout.isatty", lambda: True, raising=False)
    assert millstream("consume", "t", "-e").out == "plain\nk\tkeyed\n"


@pytest.mark.parametrize("words", [(), ("-g", "readers")], ids=["alone", "in a group"])
@pytest.mark.parametrize(
    ("given", "level"),
    [((), "read_committed"), (("--isolation", "read_uncommitted"), "read_uncommitted")],
    ids=["default", "uncommitted"],
)
def test_the_client_reads_with_the_isolation_that_was_asked_for(millstream, cluster, words, given, level):
    cluster.fill("t", b"a")
    assert millstream("consume", "t", "-e", *words, *given).out == "a\n"
    consumer = cluster.configurations[-1]
    assert consumer["isolation.level"] == level
    assert consumer["enable.auto.commit"] is bool(words)


def test_an_isolation_that_does_not_exist_is_refused(millstream, cluster):
    cluster.fill("t", b"a")
    outcome = millstream("consume", "t", "-e", "--isolation", "serializable")
    assert (outcome.code, outcome.out) == (2, "")
    assert "read_committed" in outcome.err

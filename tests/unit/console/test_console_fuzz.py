"""Any text as a filter, any bytes as a payload, any text as a cursor: an answer or a refusal, and nothing else."""

import contextlib

from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.console.filters import FilterError, Subject, parse
from millstream.console.messages import cursor_text, read_cursor
from millstream.console.payloads import read_payload
from millstream.console.registry import _protobuf
from millstream.errors import Rejected
from millstream.wire.errors import ProtocolError

WORDS = st.sampled_from(
    [
        "value",
        "key",
        "headers",
        "offset",
        "partition",
        "timestamp",
        "size",
        "topic",
        ".a",
        ".b",
        "[0]",
        "[-1]",
        '["a"]',
        "and",
        "or",
        "not",
        "(",
        ")",
        "[",
        "]",
        ",",
        ".",
        "=",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "~",
        "!~",
        "contains",
        "in",
        "true",
        "false",
        "null",
        "'x'",
        '"^a+$"',
        "3",
        "-1",
        "2.5",
        "1e400",
        "'",
        '"',
        "\\",
        "@",
        "'2026-01-31'",
    ]
)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=40), DOCUMENTS, DOCUMENTS)
@example("timestamp > 'x' in", None, None)
@example("key.a ~ 'x' and value ~ 'y'", {"a": "\ud800"}, "\ud800")
@example("value = 1e400 and timestamp < 1", 1, None)
def test_any_filter_is_refused_with_a_place_or_decides(text, key, value):
    try:
        match = parse(text)
    except FilterError as error:
        assert 0 <= error.position <= len(text)
        return
    roots = {
        "key": key,
        "value": value,
        "headers": {},
        "topic": "t",
        "partition": 1,
        "offset": 2,
        "timestamp": 3,
        "size": 4,
    }
    shown = read_payload(str(key).encode(errors="surrogatepass")).text
    assert match(Subject(roots, {"key": shown, "value": shown})) in (True, False)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b'{"a": 1e999, "a": -0}')
@example(b'"\\ud800"')
@example(b'{"\\ud800": ["\\udfff"]}')
def test_any_payload_can_be_shown(raw):
    shown = read_payload(raw)
    assert shown.size == len(raw)
    for text in (shown.text, shown.line):
        text.encode()  # what a page has to do with it


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789:,-x ²٣", max_size=30))
def test_any_cursor_is_read_or_refused(text):
    try:
        found = read_cursor("t", text)
    except Rejected:
        return
    assert read_cursor("t", cursor_text(found)) == found


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_protobuf_payload_ends(raw):
    decode = _protobuf('syntax = "proto3"; message A { message B { int64 n = 1; } repeated A a = 1; B b = 2; }', {})
    with contextlib.suppress(
        ValueError, IndexError, DecodeError, ProtocolError
    ):  # what registry.decode turns into a reason
        decode(b"\0\0\0\0\1" + raw)

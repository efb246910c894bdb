"""Payloads as the console shows them, and how a step is shared among partitions."""

import json
import sys
import tracemalloc

import pytest

from millstream.client.schema_registry import registry_access
from millstream.console.charts import SERIES_MAX, History, line, rates
from millstream.console.messages import cursor_text, read_cursor, share
from millstream.console.payloads import SHOWN_MAX, read_payload
from millstream.console.registry import Registry, _unbounded
from millstream.errors import Rejected


@pytest.mark.parametrize(
    ("raw", "kind", "data"),
    [
        (None, "null", None),
        (b"", "empty", ""),
        (b'{"a": [1]}', "json", {"a": [1]}),
        (b"5", "text", 5),
        ("Zürich\tö".encode(), "text", "Zürich\tö"),
        (b"\xff\x00\x01", "binary", "ff 00 01"),
        (b"a\x00b", "binary", "a\x00b"),
        ("\u202egnp.exe".encode(), "text", "\u202egnp.exe"),
        ("👩\u200d💻 שלום".encode(), "text", "👩\u200d💻 שלום"),
    ],
)
def test_what_a_payload_is(raw, kind, data):
    shown = read_payload(raw)
    assert (shown.format, shown.data) == (kind, data)


@pytest.mark.parametrize("around", ["{}", '{{"a": "{}"}}'])
def test_marks_that_turn_a_line_are_shown_as_escapes(around):
    shown = read_payload(around.format("invoice\u202egnp.exe\u2028").encode())
    assert "\u202e" not in shown.line + shown.text
    assert "invoice\\u202egnp.exe\\u2028" in shown.text


def test_a_small_document_that_is_deep_and_wide_takes_no_memory_beyond_measure():
    raw = b"[" * 800 + b"1," * 20_000 + b"1" + b"]" * 800  # 32 MB with a line for each part
    tracemalloc.start()
    try:
        shown = read_payload(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert shown.format == "json"
    assert len(shown.text) < SHOWN_MAX + 100
    assert peak < 8 << 20


def test_hostile_documents_are_shown_as_text():
    deep = b"[" * 200_000
    assert read_payload(deep).format == "text"
    nested = ('{"a":' * 5_000 + "1" + "}" * 5_000).encode()
    assert read_payload(nested).text
    limit = sys.get_int_max_str_digits()
    assert read_payload(b"9" * (limit + 1)).format == "text"


def test_a_large_payload_is_cut():
    shown = read_payload(b"x" * (SHOWN_MAX * 2))
    assert len(shown.text) < SHOWN_MAX + 100
    assert shown.size == SHOWN_MAX * 2
    assert len(shown.line) <= 301


def test_a_registry_that_does_not_answer_leaves_the_payload_as_it_is():
    registry = Registry(registry_access("http://127.0.0.1:9", {}))
    shown = read_payload(b"\0\0\0\0\x07abc", registry)
    assert shown.format == "binary"
    assert "schema 7: no schema registry answers" in shown.note


def test_schemas_whose_arrays_could_be_endless_are_refused():
    endless = {"type": "record", "name": "r", "fields": [{"name": "f", "type": {"type": "array", "items": "null"}}]}
    empty = {"type": "record", "name": "e", "fields": []}
    of_empty = {"type": "array", "items": empty}
    sound = {"type": "array", "items": ["null", "long"]}
    assert _unbounded(endless, {}, set())
    assert _unbounded(of_empty, {}, set())
    assert not _unbounded(sound, {}, set())
    recursive = {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}
    assert not _unbounded(recursive, {"n": recursive}, set())


def test_a_step_is_shared_so_that_small_partitions_leave_their_part():
    sizes = {("t", 0): 2, ("t", 1): 100, ("t", 2): 0, ("t", 3): 100}
    shares = share(sizes, 50)
    assert shares == {("t", 0): 2, ("t", 1): 24, ("t", 2): 0, ("t", 3): 24}
    assert share({("t", 0): 3}, 50) == {("t", 0): 3}


def test_charts_draw_numbers_alone_and_keep_a_bound():
    assert rates([(0.0, 10.0), (2.0, 30.0), (3.0, 5.0)]) == [(2.0, 10.0), (3.0, 0.0)]
    drawn = line([(0.0, 1.0), (5.0, 3.0), (10.0, 0.0)], "<lag>")
    assert 'd="M0.0 ' in drawn
    assert "&lt;lag&gt; over 10 seconds: from 1 to 0, at most 3" in drawn
    assert line([(0.0, 1.0)], "lag") == ""
    assert line([(0.0, 0.0), (0.0, 0.0)], "lag")
    history = History()
    for number in range(SERIES_MAX + 50):
        history.add(str(number), 1.0)
    assert len(history.add("0", 2.0)) == 1  # what was noted first is forgotten first


def test_cursors_go_out_and_come_back():
    positions = {("t", 1): 40, ("t", 0): 12}
    assert cursor_text(positions) == "0:12,1:40"
    assert read_cursor("t", "0:12,1:40") == positions
    for wrong in ("", "0", "0:-1", "a:1", "0:1,", "0:" + "9" * 30):
        with pytest.raises(Rejected):
            read_cursor("t", wrong)


def test_json_that_is_not_standard_does_not_stop_a_page():
    shown = read_payload(b'{"a": NaN}')
    assert shown.format == "json"
    assert json.loads(shown.text) != {}

"""Masked fields: nothing that a visitor gets has them, and what cannot be told apart is masked as a whole."""

import json

import pytest

from millstream.config.masks import Masks
from millstream.console.masks import MASK, Parts, masked, masks_of, read_masks
from millstream.console.payloads import read_payload
from millstream.wire.records import Record

SECRET = "4929-secret-1881"


def parts(value, key=b"k", headers=()):
    headers = tuple(headers)
    shown = tuple((name, read_payload(data)) for name, data in headers)
    return Parts(read_payload(key), read_payload(value), shown, Record(0, 0, key, value, headers))


def text_of(found):
    """All that leaves the console of a record."""
    shown = [found.key, found.value, *(payload for _, payload in found.headers)]
    return repr([(one.line, one.text, one.data, one.note) for one in shown]) + repr(found.raw)


@pytest.mark.parametrize(
    ("mask", "value"),
    [
        ("value.card.number", {"card": {"number": SECRET, "kind": "visa"}}),
        ("value.cards.number", {"cards": [{"number": SECRET}, {"number": SECRET, "kind": "visa"}, 3, None]}),
        ("value.card", {"card": {"deep": [SECRET], "er": {"a": SECRET}}, "kind": "visa"}),
        ("value.a.b.c", {"a": [{"b": [{"c": SECRET}]}, {"b": {"c": [SECRET]}}], "kind": "visa"}),
        ("value", {"any": SECRET}),
        ("value.n", [{"n": SECRET}]),
    ],
)
def test_a_field_is_masked_wherever_the_path_leads(mask, value):
    found = masked(parts(json.dumps(value).encode()), read_masks([mask]))
    assert SECRET not in text_of(found)
    assert MASK in found.value.line
    assert MASK in found.raw.value.decode()
    if "visa" in json.dumps(value) and mask != "value":
        assert "visa" in found.value.text
        assert json.loads(found.raw.value)


@pytest.mark.parametrize("value", [SECRET.encode(), b"\xff\x00" + SECRET.encode(), json.dumps(SECRET).encode()])
def test_a_value_without_fields_is_masked_as_a_whole(value):
    found = masked(parts(value), read_masks(["value.card.number"]))
    assert SECRET not in text_of(found)
    assert SECRET.encode().hex(" ") not in text_of(found)
    assert (found.value.format, found.raw.value.decode()) == ("masked", MASK)


def test_keys_and_headers_are_masked_and_names_of_headers_ignore_case():
    headers = [("Authorization", SECRET.encode()), ("trace", b"7"), ("authorization", None)]
    found = masked(parts(b"{}", SECRET.encode(), headers), read_masks(["key", "headers.authorization"]))
    assert SECRET not in text_of(found)
    assert found.raw.headers[1] == ("trace", b"7")
    assert found.headers[1][1].line == "7"


def test_what_no_mask_covers_stays_as_it_is():
    before = parts(b'{"a": 1}', b"k", [("h", b"x")])
    assert masked(before, read_masks(["value.b", "headers.y"])) == before
    nothing = parts(None, b"k")
    assert masked(nothing, read_masks(["value.card"])).raw.value is None, "a tombstone stays one"


def test_a_mask_is_for_the_topics_that_it_names():
    masks = read_masks(["customers-*/value.email", "key"])
    assert [mask.root for mask in masks_of("customers-eu", masks)] == ["value", "key"]
    assert [mask.root for mask in masks_of("orders", masks)] == ["key"]


@pytest.mark.parametrize("text", ["card", "values.a", "value.", "value..a", "a b/value", "value.a b", "/key", "value/"])
def test_what_is_no_mask_is_refused(text):
    with pytest.raises(ValueError):
        Masks().read_plain(text)
    assert Masks().read_plain("") == ()
    assert Masks().read_plain("key, a*/value.x") == ("key", "a*/value.x")

"""How the text of a setting becomes a value, and back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream
from millstream.config.forms import (
    INT64_MAX,
    Boolean,
    Choices,
    Endpoint,
    HostPort,
    Integer,
    OptionalInteger,
    exact,
    human_size,
    parse_duration_ms,
    parse_endpoint,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1073741824", 2**30),
        ("512MiB", 512 * 2**20),
        ("512 MiB", 512 * 2**20),
        ("1GB", 10**9),
        ("1gib", 2**30),
        ("64k", 65536),
        ("1.5GiB", 3 * 2**29),
        ("2TiB", 2**41),
        ("7B", 7),
    ],
)
def test_sizes_are_read_with_binary_and_decimal_units(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "1XB", "1..5GiB", "1.5.2k", "0.3B", "--1", "1-2", "12 apples", "1e9", "٣"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1500", 1500),
        ("1500ms", 1500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("12h", 43_200_000),
        ("7d", 604_800_000),
        ("0.5s", 500),
    ],
)
def test_durations_are_read_in_milliseconds(text, expected):
    assert parse_duration_ms(text) == expected


def test_a_duration_that_is_no_whole_number_of_the_unit_is_refused():
    with pytest.raises(ValueError):
        Integer(0, unit="hours").read("90m")
    assert Integer(0, unit="hours").read("7d") == 168
    assert Integer(-1, unit="hours").read("-1") == -1


def test_the_plain_spelling_refuses_suffixes():
    form = Integer(0, INT64_MAX, unit="bytes")
    assert form.read("1MiB") == form.read_plain("1048576") == 1048576
    with pytest.raises(ValueError):
        form.read_plain("1MiB")


@pytest.mark.parametrize(
    ("form", "text"), [(Integer(1, 5), "0"), (Integer(1, 5), "6"), (OptionalInteger(0), "-1"), (Integer(0), "")]
)
def test_bounds_are_inclusive_and_kept(form, text):
    with pytest.raises(ValueError):
        form.read(text)
    assert Integer(1, 5).read("1") == 1
    assert Integer(1, 5).read("5") == 5


def test_an_optional_integer_may_be_empty():
    form = OptionalInteger(0)
    assert form.read("") is None
    assert form.write(None) is None
    assert form.write(form.read("3")) == "3"


def test_booleans_know_two_words():
    assert Boolean().read("TRUE") is True
    assert Boolean().write(Boolean().read("false")) == "false"
    with pytest.raises(ValueError):
        Boolean().read("yes")
    assert not Boolean().accepts(1)
    assert not Integer(0).accepts(True)


def test_a_list_keeps_its_order_and_refuses_repeats_and_strangers():
    form = Choices("delete", "compact")
    assert form.read("compact, delete") == ("compact", "delete")
    assert form.write(("compact", "delete")) == "compact,delete"
    for wrong in ("", "delete,delete", "delete,shred", "Delete"):
        with pytest.raises(ValueError):
            form.read(wrong)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:9092", Endpoint("127.0.0.1", 9092)),
        ("PLAINTEXT://broker:0", Endpoint("broker", 0)),
        ("plaintext://broker:1", Endpoint("broker", 1)),
        ("[::1]:9092", Endpoint("::1", 9092)),
        (":9092", Endpoint("0.0.0.0", 9092)),
    ],
)
def test_listeners_are_read_with_and_without_scheme(text, endpoint):
    form = HostPort()
    assert form.read(text) == endpoint
    assert form.read(form.write(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "host:x", "host:65536", "::1:9092", "HTTP://h:1", "a b:1", "SSL://h:1", "a..b:1"]
)
def test_what_is_not_a_listener_is_refused(text):
    with pytest.raises(ValueError):
        HostPort().read(text)


def test_an_advertised_port_must_be_real():
    with pytest.raises(ValueError):
        HostPort(lowest_port=1).read("h:0")


@given(st.text(max_size=30))
def test_no_text_does_worse_than_value_error(text):
    for read in (
        parse_size,
        parse_duration_ms,
        parse_endpoint,
        Integer(0, unit="bytes").read,
        Boolean().read,
        HostPort().read,
    ):
        try:
            read(text)
        except ValueError:
            continue


@given(st.integers(min_value=0, max_value=2**40))
def test_human_sizes_of_whole_units_read_back(count):
    for size in (count % 1024, (count % 1023 + 1) * 2**20, (count % 1023 + 1) * 2**30):
        assert parse_size(human_size(size)) == size


def test_digits_are_those_that_int_takes():
    """``"²".isdigit()`` is true, and ``int("²")`` an error: code asks ``isdecimal``, or ``isascii`` beside it."""
    root = Path(millstream.__file__).parent
    places = {path: path.read_text(encoding="utf-8").splitlines() for path in root.rglob("*.py")}
    assert [
        f"{path}:{number}"
        for path, lines in places.items()
        for number, line in enumerate(lines, start=1)
        if ".isdigit()" in line and ".isascii()" not in line
    ] == []


@pytest.mark.parametrize(
    ("number", "text"), [(1048576, "1048576"), (1048577.0, "1048577"), (0.5, "0.5"), (123456789.25, "123456789.25")]
)
def test_an_exact_number_has_all_its_digits(number, text):
    assert exact(number) == text

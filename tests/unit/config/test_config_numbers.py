"""Settings that are numbers with a fraction: read as Kafka reads them, shown as Java shows a double."""

import pytest

from millstream.config.forms import DOUBLE_MAX, Number


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.0"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (9_999_999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12_345_678.0, "1.2345678E7"),
        (DOUBLE_MAX, "1.7976931348623157E308"),
    ],
)
def test_numbers_are_shown_as_java_shows_them_and_read_back(value: float, shown: str) -> None:
    form = Number(0.0)
    assert form.write(value) == shown
    assert form.read_plain(shown) == value


@pytest.mark.parametrize("text", ["", "much", "nan", "inf", "-0.1", "1.1", "0,5"])
def test_what_is_no_number_within_the_bounds_is_refused(text: str) -> None:
    form = Number(0.0, 1.0)
    with pytest.raises(ValueError):
        form.read_plain(text)
    assert "0.0 to 1.0" in form.expected()

"""Where a share group starts, as its property says it."""

import pytest

from millstream.config.group_properties import EARLIEST, LATEST, OffsetReset


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("latest", LATEST),
        ("earliest", EARLIEST),
        ("by_duration:PT1H", 3_600_000),
        ("by_duration:P1DT2H3M4.5S", 93_784_500),
        ("by_duration:PT0.001S", 1),
    ],
)
def test_words_and_durations_are_read_and_written(text, value):
    form = OffsetReset()
    assert form.read_plain(text) == value
    assert form.read_plain(form.write(value)) == value


@pytest.mark.parametrize("text", ["", "none", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-PT1H"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError):
        OffsetReset().read_plain(text)

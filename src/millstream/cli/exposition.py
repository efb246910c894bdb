"""Reading Prometheus' text format as a Millstream broker writes it: numbers by name and labels, histograms put
together.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

Labels = tuple[tuple[str, str], ...]
Histogram = list[tuple[float, float]]
"""(upper bound, observations up to it), rising; the last bound is infinity."""


class Exposition:
    """One scrape. Labels are given as keyword arguments; values are summed over labels that are not given."""

    def __init__(self, text: str, read_at: float) -> None:
        self.read_at = read_at
        """Time of the scrape on the monotonic clock, in seconds."""

        self._values: dict[str, dict[Labels, float]] = {}
        for line in text.splitlines():
            match = _LINE.match(line)
            if match is None:
                continue
            labels = tuple(sorted(_LABEL.findall(match[2] or "")))
            self._values.setdefault(match[1], {})[labels] = float(match[3])

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples that have these labels; 0 without any."""
        wanted = set(labels.items())
        return sum(value for found, value in self._values.get(name, {}).items() if wanted <= set(found))

    def values_of(self, label: str, name: str | None = None) -> list[str]:
        """The values that a label has, in any metric or in one."""
        metrics = self._values.values() if name is None else [self._values.get(name, {})]
        return sorted({value for samples in metrics for found in samples for key, value in found if key == label})

    def histogram(self, name: str, **labels: str) -> Histogram:
        """Buckets of a histogram, summed over the labels that are not given."""
        wanted = set(labels.items())
        sums: dict[float, float] = {}
        for found, value in self._values.get(f"{name}_bucket", {}).items():
            if wanted <= set(found):
                bound = float(dict(found)["le"])
                sums[bound] = sums.get(bound, 0.0) + value
        return sorted(sums.items())


def read_exposition(url: str, timeout: float) -> Exposition:
    """Fetch and read a page; raises OSError if that is impossible, also if the answer ends early or is not a page of
    metrics.
    """
    import urllib.request
    from http.client import HTTPException

    from millstream.cli.broker_http import https_context

    context = https_context() if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(url, timeout=timeout, context=context) as response:  # noqa: S310  # the user's own
            text = response.read().decode()
        return Exposition(text, time.monotonic())
    except (HTTPException, ValueError) as error:
        raise OSError(f"this is no page of metrics: {error}") from error


def quantile(before: Histogram, now: Histogram, q: float) -> float | None:
    """An upper bound of the quantile of what was observed in between; None if nothing was."""
    earlier: Mapping[float, float] = dict(before)
    counts = [(bound, count - earlier.get(bound, 0.0)) for bound, count in now]
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    return next(bound for bound, count in counts if count >= q * total)

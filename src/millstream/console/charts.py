"""Charts as SVG, drawn by the server: a line over time, and bars.

Colours come from the style sheet by class, so a chart follows light and dark. Every chart has a text for those who do
not see it. Nothing in a chart comes from a client of the cluster but numbers.
"""

import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

WIDTH: Final = 720
HEIGHT: Final = 120
SAMPLES_MAX: Final = 240
SERIES_MAX: Final = 200
SAMPLE_EVERY_S: Final = 2.0

Sample = tuple[float, float]
"""Seconds since 1970, and a value."""


class History:
    """The last values of what was shown: of at most ``SERIES_MAX`` names, ``SAMPLES_MAX`` each. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: OrderedDict[str, deque[Sample]] = OrderedDict()

    def add(self, name: str, value: float) -> list[Sample]:
        """Note a value, unless the last one is younger than ``SAMPLE_EVERY_S``, and return all of them."""
        now = time.time()
        with self._lock:
            samples = self._series.setdefault(name, deque(maxlen=SAMPLES_MAX))
            self._series.move_to_end(name)
            while len(self._series) > SERIES_MAX:
                self._series.popitem(last=False)
            if not samples or now - samples[-1][0] >= SAMPLE_EVERY_S:
                samples.append((now, value))
            return list(samples)


def rates(samples: Sequence[Sample]) -> list[Sample]:
    """How fast a value that only grows did so, a second, between each two samples. Where it fell, it did not grow."""
    return [
        (now, max(value - before, 0.0) / max(now - then, 0.001))
        for (then, before), (now, value) in itertools.pairwise(samples)
    ]


def line(samples: Sequence[Sample], what: str) -> Markup:
    """A line with the area below it. Empty with fewer than two samples."""
    if len(samples) < 2:
        return Markup("")
    first, last = samples[0][0], samples[-1][0]
    top = max(value for _, value in samples) or 1.0
    spread = max(last - first, 0.001)

    def x(moment: float) -> float:
        return round((moment - first) / spread * WIDTH, 1)

    def y(value: float) -> float:
        return round(HEIGHT - 4 - value / top * (HEIGHT - 12), 1)

    points = [(x(moment), y(value)) for moment, value in samples]
    path = "M" + " L".join(f"{a} {b}" for a, b in points)
    area = f"{path} L{WIDTH} {HEIGHT} L0 {HEIGHT} Z"
    said = f"{what} over {spread:,.0f} seconds: from {samples[0][1]:,.0f} to {samples[-1][1]:,.0f}, at most {top:,.0f}"
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{said}">'
        '<path class="area" d="{area}"/><path class="line" d="{path}" vector-effect="non-scaling-stroke"/></svg>'
    ).format(w=WIDTH, h=HEIGHT, said=said, area=area, path=path)


def bar(value: float, whole: float, what: str) -> Markup:
    """A thin bar: ``value`` of ``whole``."""
    width = 0.0 if whole <= 0 else round(min(max(value / whole, 0), 1) * 100, 1)
    return Markup(
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{what}">'
        '<rect class="track" width="100" height="6"/><rect class="fill" width="{width}" height="6"/></svg>'
    ).format(what=what, width=width)

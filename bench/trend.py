"""Whether a series of measurements is flat: decided by a slope, not by eye.

The slope is the median of the slopes between all pairs of points (Theil and Sen), which a few spikes do not move. What
it adds up to over the observed time is the growth; a series is flat when that is within what is allowed.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

POINTS = 400
"""More are thinned out evenly; pairs go with the square."""


@dataclass(frozen=True)
class Trend:
    """``growth`` over the observed time, ``a_hour`` the same in an hour, ``level`` the median, ``allowed`` growth."""

    growth: float
    a_hour: float
    level: float
    allowed: float

    @property
    def flat(self) -> bool:
        """A fall is no leak."""
        return self.growth <= self.allowed


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Units a second; 0 for fewer than two moments."""
    if len(points) > POINTS:
        points = [points[i * len(points) // POINTS] for i in range(POINTS)]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for i, earlier in enumerate(points)
        for later in points[i + 1 :]
        if later[0] > earlier[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def of_second_half(points: Sequence[tuple[float, float]], share: float, least: float) -> Trend:
    """The trend after half of the time of ``points`` (seconds, value); ``share`` of the level may be gained, or
    ``least`` where that is more.
    """
    middle = (points[0][0] + points[-1][0]) / 2
    late = [point for point in points if point[0] >= middle]
    a_second, level = slope(late), statistics.median(value for _, value in late)
    span = late[-1][0] - late[0][0]
    return Trend(a_second * span, 3600 * a_second, level, max(share * level, least))

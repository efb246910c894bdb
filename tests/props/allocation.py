"""What Python code allocates at most, all together and in one piece, by ``tracemalloc``."""

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STEP = 1.25
"""Growth of all together between two looks at the pieces."""


@contextmanager
def without_lines(function: Any) -> Iterator[None]:
    """Inside, ``function`` has no line numbers. ``tracemalloc`` looks up that of every allocation, which takes a
    hundred times as long as the allocation where a function was generated and has thousands of lines.
    """
    code = function.__code__
    function.__code__ = code.replace(co_linetable=b"")
    try:
        yield
    finally:
        function.__code__ = code


def peak_bytes(run: Callable[[], object], enough: int = 0) -> int:
    """What ``run`` held at its peak.

    A thread that another test left may allocate at the same time. So a peak above ``enough`` is measured again, and the
    least of three counts.
    """
    least = _peak(run)
    for _ in range(2):
        if least <= enough:
            break
        least = min(least, _peak(run))
    return least


def _peak(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def largest_kept_bytes(run: Callable[[], object]) -> int:
    """The largest single allocation of what ``run`` gives, which a list has grown to."""
    tracemalloc.start()
    try:
        kept = run()
        largest = _largest()
        del kept
        return largest
    finally:
        tracemalloc.stop()


def largest_bytes(run: Callable[[], object], floor: int, inside: str = "") -> int:
    """The largest single allocation of ``run`` that is there between two lines, if it is above ``floor``.

    What a list grows to counts as one, as for an allocator that has to find a new place for it. One piece is never
    more than all of them, so that the pieces are only looked at while all together are above the floor: when they have
    grown by a quarter, and at the end. ``inside`` names the one function whose lines are looked between.
    """
    largest, looked_at = 0, float(floor)

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal largest, looked_at
        if inside and frame.f_code.co_name != inside:
            return None
        held = tracemalloc.get_traced_memory()[0]
        if held > looked_at * STEP:
            looked_at = held
            largest = max(largest, _largest())
        return trace

    tracemalloc.start()
    sys.settrace(trace)
    try:
        kept = run()
        sys.settrace(None)
        if tracemalloc.get_traced_memory()[0] > floor:
            largest = max(largest, _largest())
        del kept
    finally:
        sys.settrace(None)
        tracemalloc.stop()
    return largest


def _largest() -> int:
    traces = tracemalloc.take_snapshot().traces._traces  # type: ignore[attr-defined]
    return max(size for _, size, *_ in traces)

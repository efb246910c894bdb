"""How tests wait: they look at a condition again and again, with a bound that only ends a hang.

A busy machine takes ten times as long for what it always does, so no bound here says how fast something has to be.
``tools/tidy.py`` refuses other sleeps, clocks that are compared, and bounds below a minute (``tools/fixed_waits.py``).
"""

import time

PATIENCE_S = 240


def until(holds, what="", patience_s=PATIENCE_S, every_s=0.02):
    """What ``holds`` returns once that is true.

    Args:
        holds: is called again and again.
        what: said when it never is: a text, or a function that gives one then.
        patience_s: when to give up.
        every_s: pause between two looks.
    """
    limit = time.monotonic() + patience_s
    while not (found := holds()):
        assert time.monotonic() < limit, f"not within {patience_s} s: {what() if callable(what) else what}"
        time.sleep(every_s)
    return found


class Patience:
    """The bound of a loop that does more than look: ``check()`` in each round."""

    def __init__(self, seconds=PATIENCE_S):
        self._limit = time.monotonic() + seconds

    def check(self, what=""):
        assert time.monotonic() < self._limit, f"it does not end: {what}"


def moment(seconds):
    """Let a moment pass, so that a fault strikes at another place of what goes on; nothing is expected to be over."""
    time.sleep(seconds)

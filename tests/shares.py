"""The order in which several workers run the suite: long tests first, and one Spark session for all of Spark's tests.

``--dist worksteal`` gives each worker one stretch of the collected tests, and moves tests from the end of a stretch to
a worker that has none left. So each stretch begins with tests that start processes and ends with unit tests, which fill
the gap at the end of a run. The order within a module stays. A module with processes stays on one worker, because its
tests share the processes that they start.
"""

from itertools import groupby

SPARK_S, PROCESS_S = 8, 2
"""Seconds that a test takes, roughly, by its marker; others take none."""


def seconds(item):
    """A rough estimate, for balance alone."""
    if item.get_closest_marker("spark"):
        return SPARK_S
    return PROCESS_S if item.get_closest_marker("process") else 0


def in_shares(items, workers):
    """``items`` in the order in which ``workers`` workers divide them well."""
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    spark = [item for tests in modules if _weight(tests) >= SPARK_S * len(tests) for item in tests]
    processes = [tests for tests in modules if 0 < _weight(tests) < SPARK_S * len(tests)]
    long = [spark, *sorted(processes, key=_weight, reverse=True)]
    short = [item for tests in modules if not _weight(tests) for item in tests]
    shares = [[] for _ in range(workers)]
    for tests in long:
        min(shares, key=_weight).extend(tests)
    ordered = []
    for number, share in enumerate(shares):
        end = len(items) * (number + 1) // workers
        gap = max(0, end - len(ordered) - len(share))
        ordered += share + short[:gap]
        del short[:gap]
    return ordered + short


def _weight(tests):
    return sum(map(seconds, tests))

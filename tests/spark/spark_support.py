"""What the tests on Spark have in common beside their fixtures."""

import collections

import pyarrow as pa
from class_archive import BRIEF

BRIEF_DRIVER = {"spark.driver.extraJavaOptions": BRIEF}
"""``spark:`` of a declared pipeline whose driver lives that briefly."""

SMALL_SEGMENTS = 1 << 20  # the least that a topic may have

BAD_EVERY = 25
"""One broken record after so many."""


def delta(path):
    import deltalake

    return pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table()).to_pylist()


def check_exact(orders, place, name="t"):
    """Every record is in the table or in its dead letters, once."""
    rows, letters = delta(place / name), delta(place / f"{name}_dead_letters")
    ids = collections.Counter(row["id"] for row in rows)
    assert max(ids.values()) == 1
    assert set(ids) == {number for number in range(orders.good + orders.bad) if number % BAD_EVERY}
    source_partitions = collections.Counter((row["partition"], row["offset"]) for row in letters)
    assert (len(source_partitions), max(source_partitions.values())) == (orders.bad, 1)
    assert {(row["value"], row["topic"]) for row in letters} == {(b"{broken", orders.topic.name)}
    assert all("malformed" in row["error"] for row in letters)

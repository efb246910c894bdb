"""Tables of every mode are exact after the driver that fills them was killed at any moment.

One pipeline fills four tables of one kind from one topic: rows are appended, appended in partitions, kept by key, and
kept as changes. Each kill strikes all four, behind a commit of one of them. ``MILLSTREAM_KILLS`` says how often,
``MILLSTREAM_SEED`` when.
"""

import collections
import contextlib
import os

import pytest
from keyed_records import Customers
from spark_support import BRIEF_DRIVER, held, run_killed
from tests import buckets

from millstream.pipeline.model import Create, Sink

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(7200)]

RECORDS = 300 * max(4, int(os.environ.get("MILLSTREAM_KILLS", "10")))
"""About three batches a kill."""


def sinks(where):
    """A sink of each mode."""

    def target(name):
        return {"delta": {"delta": name}, "iceberg": {"iceberg": f"ns.{name}"}, "s3": {"delta": f"s3://lake/{name}"}}[
            where
        ]

    parted = "SELECT id, who, id % 3 AS part FROM result"
    return {
        "append": Sink(**target("plain"), mode="append"),
        "partitioned": Sink(**target("parted"), sql=parted, create=Create(partition=["part"])),
        "upsert": Sink(**target("by_key"), mode="upsert", key="id"),
        "changelog": Sink(**target("changes"), mode="changelog", key="id"),
    }


@pytest.mark.parametrize("where", ["delta", "iceberg", "s3"])
def test_a_driver_that_is_killed_anywhere_leaves_exact_tables_of_every_mode(
    orders, topic, tmp_path, monkeypatch, where
):
    with contextlib.ExitStack() as held_open:
        if where == "s3":
            found = buckets.environment(held_open.enter_context(buckets.moto()), tmp_path)
            for name in found.keys() - {"HOME"}:  # where the classes of Spark are stored
                monkeypatch.setenv(name, found[name])
        customers = Customers(topic).send(RECORDS, keys=300)
        by_mode = sinks(where)
        run_killed(orders.pipeline(*by_mode.values(), source=customers.source(), spark=BRIEF_DRIVER), tmp_path)
        for mode, sink in by_mode.items():
            rows, letters = held(sink, tmp_path), held(sink, tmp_path, "_dead_letters")
            (check_latest if mode in ("upsert", "changelog") else check_appended)(customers, rows, letters, mode)


def check_appended(customers, rows, letters, mode):
    """Each record is one row or one dead letter."""
    assert collections.Counter((row["id"], row["who"]) for row in rows) == +customers.appended
    if mode == "partitioned":
        assert all(row["part"] == (None if row["id"] is None else row["id"] % 3) for row in rows)
    assert len(letters) == len({(row["partition"], row["offset"]) for row in letters}) == customers.broken


def check_latest(customers, rows, letters, mode):
    """The table has what the records make of it, and each broken record is one dead letter."""
    if mode == "changelog":
        assert len(rows) == len({(row["_partition"], row["_offset"]) for row in rows}) == customers.sent - customers.bad
        last = {row["id"]: row for row in sorted(rows, key=lambda row: row["_offset"])}
        rows = [row for row in last.values() if row["_change"] == "upsert"]
    assert sorted((row["id"], row["who"]) for row in rows) == sorted(customers.rows.items())
    assert len(letters) == len({(row["partition"], row["offset"]) for row in letters}) == customers.bad

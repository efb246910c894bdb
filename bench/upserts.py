"""What the same changes cost in a small and in a large table with keys: CPU of the merge alone, without Spark.

::

    python -m bench.upserts --rows 1000000 10000000

Each table is loaded in the order of the key and then gets the same 1,000 keys, once close together and once spread over
the first million rows. The figure is CPU seconds of this process for one commit, best of three; rows are counted
afterwards. What is to be seen is that the cost follows the files that are touched.
"""

import argparse
import datetime as dt
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.pipeline.changes import Changes
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.files import FileWriter
from millstream.pipeline.keyed_query import keyed_sink
from millstream.pipeline.keyed_sink import KeyedSink
from millstream.pipeline.layout import conform
from millstream.pipeline.model import Sink
from millstream.pipeline.tables.open_table import open_table

KEYS = 1000
SPREAD = 1_000_000
CHUNK = 250_000
UTC_US = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema(
    [
        ("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("_topic", pa.string()),
        ("_partition", pa.int32()), ("_offset", pa.int64()), ("_timestamp", UTC_US),
    ]
)  # fmt: skip


def rows_of(ids: Any, first_offset: int, schema: Any) -> Any:
    """A table row for each id, in all columns of the table."""
    count = len(ids)
    now = pa.scalar(dt.datetime.now(dt.UTC), UTC_US)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "name": pa.array([f"customer number {one}" for one in ids]),
        "amount": pa.array(np.random.default_rng(count).random(count)),
        "_topic": pa.repeat(pa.scalar("t"), count),
        "_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "_offset": pa.array(np.arange(first_offset, first_offset + count)),
        "_timestamp": pa.repeat(now, count),
        "_generation": pa.repeat(pa.scalar(0, pa.int64()), count),
    }
    return pa.table({field.name: columns[field.name] for field in schema})


def load(declared: Sink, directory: str, count: int) -> Any:
    """Make a table with keys from 0 on; returns the schema of its files."""
    loader = TableSink(open_table(declared, directory), None, pipeline="p", sink="load")
    schema = loader.open(COLUMNS.append(pa.field("_generation", pa.int64())))
    writer = FileWriter(loader.table.location, "load", schema)
    for first in range(0, count, CHUNK):
        for batch in rows_of(range(first, min(first + CHUNK, count)), first, schema).to_batches():
            writer.write(conform(batch, schema))
    loader.commit(Batch(query="load", number=0, offsets="{}", files=tuple(writer.close())))
    return schema


def merge(sink: KeyedSink, schema: Any, ids: list[int], number: int) -> float:
    """CPU seconds of one commit of changes of these keys."""
    rows = rows_of(ids, 1 << 40 | number << 20, schema)
    changes = Changes(rows, np.zeros(len(ids), dtype=bool), ("id",))
    batch = Batch(query="q", number=number, offsets="{}", rows=len(ids))
    begun = time.process_time()
    sink.commit(sink.filled(batch, changes, "part"))
    return time.process_time() - begun


def measured(kind: str, count: int, directory: str) -> tuple[float, float]:
    """CPU of keys that are close together, and of keys that are spread."""
    declared = (
        Sink(delta="t", mode="upsert", key="id") if kind == "delta" else Sink(iceberg="ns.t", mode="upsert", key="id")
    )
    sink = keyed_sink("p", declared, directory, open_table(declared, directory), None, "s")
    schema = load(declared, directory, count)
    sink.open(COLUMNS)
    close = list(range(SPREAD // 2, SPREAD // 2 + KEYS))
    spread = random.Random(7).sample(range(SPREAD), KEYS)
    figures = [
        min(merge(sink, schema, ids, 3 * turn + one) for one in range(3)) for turn, ids in enumerate((close, spread))
    ]
    held = sum(batch.num_rows for batch in sink.table.scan())
    assert held == count, f"{held} rows, and {count} keys"
    return figures[0], figures[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    given = parser.parse_args()
    for kind in ("delta", "iceberg"):
        for count in given.rows:
            with tempfile.TemporaryDirectory() as directory:
                close, spread = measured(kind, count, directory)
                files = sum(1 for _ in Path(directory).rglob("*.parquet"))
            print(f"{kind}, {count:,} rows ({files} files): close {close:.2f} CPU-s, spread {spread:.2f} CPU-s")


if __name__ == "__main__":
    main()

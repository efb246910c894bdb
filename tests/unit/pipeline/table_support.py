"""A table and what a pipeline and its owner do to it, without Spark: rows go the way that a task's rows go."""

import json
import os

import deltalake
import pyarrow as pa
import pyarrow.dataset

from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.files import FileWriter
from millstream.pipeline.layout import conform
from millstream.pipeline.model import Sink
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA
from millstream.pipeline.tables.open_table import DEAD_LETTERS_SUFFIX, open_table

N = pa.schema([("n", pa.int64())])


class Writer:
    """A pipeline's sink on a table of one kind in a directory; each ``append`` is a batch of its own. ``letters``: dead
    letters are kept.
    """

    def __init__(self, directory, kind, *, query="q", name="s", replay=False, target=None, catalog=None, letters=False):
        self.directory = directory
        self.kind = kind
        self.query = query
        self.number = 0
        target = target or ("ns.t" if kind == "iceberg" else "t")
        declared = Sink(**{kind: target}, catalog=catalog)
        self.table = open_table(declared, str(directory))
        kept = open_table(declared, str(directory), suffix=DEAD_LETTERS_SUFFIX) if letters else None
        self.sink = TableSink(
            self.table, kept, pipeline="p", sink=name, compact=False, replay=replay, pause=lambda _: None
        )
        self.schema = None

    def open(self, schema):
        self.schema = self.sink.open(schema)
        return self

    def files(self, rows):
        """Files of a batch that is not committed yet; ``rows`` is a table or a list of rows."""
        if isinstance(rows, list):
            rows = pa.Table.from_pylist(rows)
        writer = FileWriter(self.table.location, f"part-{self.number}", self.schema)
        for batch in rows.to_batches():
            writer.write(conform(batch, self.schema))
        return tuple(writer.close())

    def dead_letters(self, *offsets, value=b"?"):
        """Files of dead letters of a batch that is not committed yet."""
        rows = [{"topic": "t", "partition": 0, "offset": at, "value": value, "error": "bad"} for at in offsets]
        writer = FileWriter(self.sink.dead_letters.location, f"letters-{self.number}", self.sink.letters_schema)
        writer.write(conform(pa.RecordBatch.from_pylist(rows, DEAD_LETTER_SCHEMA), self.sink.letters_schema))
        return tuple(writer.close())

    def commit(self, files, offsets="{}", letters=()):
        batch = Batch(query=self.query, number=self.number, offsets=offsets, files=files, dead_letters=letters)
        outcome = self.sink.commit(batch)
        self.number += 1
        return outcome

    def append(self, rows, offsets="{}", letters=()):
        return self.commit(self.files(rows), offsets, letters)

    def iceberg(self):
        return self.table._catalog.load_table("ns.t")

    def delta(self):
        return deltalake.DeltaTable(str(self.directory / "t"))

    def rows(self):
        """The rows as the table format's own reader has them, in the order of their first column."""
        if self.kind == "iceberg":
            found = self.iceberg().scan().to_arrow()
        else:
            query = deltalake.QueryBuilder().register("t", self.delta())
            found = pa.table(query.execute("select * from t").read_all())
        first = found.column_names[0]
        return sorted(found.to_pylist(), key=lambda row: (row[first] is None, row[first]))


def ends(offset, topic_id="1" * 32):
    """Where a batch ends, as in Spark's log."""
    return json.dumps({"bundles": 0, "topics": {topic_id: {"n": "t", "p": {"0": [offset, 0, 1]}}}, "v": 1})


def numbers(writer):
    if writer.kind == "parquet":
        root = os.path.dirname(writer.table.location.address)
        return sorted(pa.dataset.dataset(root, partitioning="hive").to_table().column("n").to_pylist())
    return [row["n"] for row in writer.rows()]


def set_back(writer, version):
    if writer.kind == "delta":
        writer.delta().restore(version)
    else:
        with writer.iceberg().manage_snapshots() as manage:
            manage.rollback_to_snapshot(version)


def version_of(writer):
    return writer.delta().version() if writer.kind == "delta" else writer.iceberg().current_snapshot().snapshot_id

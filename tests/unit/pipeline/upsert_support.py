"""A table with one row for each key, and what a pipeline does to it, without Spark: each ``put`` is a batch."""

import datetime as dt
import json

import deltalake
import pyarrow as pa
from pyarrow.dataset import dataset

from millstream.pipeline.change_reader import ChangeReader
from millstream.pipeline.checks import key_of
from millstream.pipeline.commit import Batch
from millstream.pipeline.keyed_query import keyed_sink
from millstream.pipeline.model import Sink, Source
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA
from millstream.pipeline.tables.open_table import open_table
from millstream.spark.offsets import Position, StreamOffset, TopicPositions

UTC_US = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("name", pa.string()), ("_topic", pa.string()), ("_partition", pa.int32()),
        ("_offset", pa.int64()), ("_timestamp", UTC_US),
    ]
)  # fmt: skip
T0 = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def positions(ends, *, topic="t", topic_id="1" * 32):
    places = {partition: Position(end) for partition, end in ends.items()}
    return StreamOffset({topic_id: TopicPositions(topic, places)})


class Upserts:
    """A table with keys and what a pipeline does to it; ``put`` is one batch of records."""

    def __init__(self, directory, kind, *, key="id", name="s", schema=SCHEMA, mode="upsert", target=None, **more):
        self.kind, self.directory = kind, directory
        target = target or ("ns.t" if kind == "iceberg" else "t")
        self.declared = Sink(**{kind: target}, mode=mode, key=key, **more)
        self.name, self.schema = name, schema
        self.ends, self.number, self.topic_id = {}, 0, "1" * 32
        self.reopen()

    def reopen(self):
        table = open_table(self.declared, str(self.directory))
        self.sink = keyed_sink("p", self.declared, str(self.directory), table, None, self.name)
        self.sink._pause = lambda _: None
        self.sink.take()
        written = self.sink.open(self.schema)
        key = key_of(self.declared) or table.key
        self.reader = ChangeReader(Source(topic="t"), written, key)
        self.rows_schema = ChangeReader.row_schema(written, key)
        return self

    def batch(self, records, *, query="q"):
        """``records`` are (key, value or None, partition, offset) and perhaps a second of their time."""
        for _, _, partition, offset, *_ in records:
            self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)
        offsets = positions(self.ends, topic_id=self.topic_id).to_json()
        text = json.dumps(offsets)
        rows, gone = [], []
        for key, value, partition, offset, *second in records:
            at = T0 + dt.timedelta(seconds=second[0] if second else offset)
            if value is None:
                gone.append(
                    {"topic": "t", "partition": partition, "offset": offset, "timestamp": at, "key": str(key).encode()}
                )
            else:
                row = {"_topic": "t", "_partition": partition, "_offset": offset, "_timestamp": at}
                rows.append(row | ({"id": key, "name": value} if not isinstance(value, dict) else value))
        generations = self.sink.generations(text)
        read = self.reader.read(
            pa.Table.from_pylist(rows, self.rows_schema),
            pa.Table.from_pylist(gone, DEAD_LETTER_SCHEMA),
            generations,
            self.raw,
        )
        self.letters = read.letters.to_pylist()
        self.number += 1
        count = read.changes.rows.num_rows
        batch = Batch(query=query, number=self.number - 1, offsets=text, rows=count, generations=generations)
        return self.sink.filled(batch, read.changes, f"part-{self.number}")

    def raw(self, wanted):
        return {(*target, offset): (b"k", b"v") for target, offsets in wanted.items() for offset in offsets}

    def put(self, *records):
        return self.sink.commit(self.batch(records))

    def table(self):
        """The rows as the table format's own reader has them."""
        if self.kind == "iceberg":
            return self.sink.table._catalog.load_table("ns.t").scan().to_arrow()
        if self.kind == "parquet":
            return dataset(str(self.directory / "t"), partitioning="hive").to_table()
        table = deltalake.DeltaTable(str(self.directory / "t"))
        return pa.table(deltalake.QueryBuilder().register("t", table).execute("select * from t").read_all())

    def held(self):
        rows = self.table().select(["id", "name"]).to_pylist()
        found = {row["id"]: row["name"] for row in rows}
        assert len(found) == len(rows), f"a key has several rows: {rows}"
        return found

    def files(self):
        """Paths of the table's data files."""
        if self.kind == "iceberg":
            return {task.file.file_path for task in self.sink.table._catalog.load_table("ns.t").scan().plan_files()}
        return set(deltalake.DeltaTable(str(self.directory / "t")).file_uris())

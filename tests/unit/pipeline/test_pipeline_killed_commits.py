"""Writers of tables that are killed: at random moments, and before and after each step of a batch, without Spark.

A writer is a process that does what a driver does: it opens its sink, and commits the batches that its checkpoint does
not have. Another one takes its place when it was killed. Batches are the same again, as Spark's are. In the end each
table is exact. ``MILLSTREAM_KILLS`` says how often each is killed, ``MILLSTREAM_SEED`` when.
"""

import collections
import json
import multiprocessing
import os
import random
import signal
import time

import pyarrow as pa
import pytest
from pyarrow.dataset import dataset
from tests import buckets
from upsert_support import SCHEMA, T0, Upserts, positions

from millstream.pipeline import upkeep
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.files import FileWriter
from millstream.pipeline.layout import conform
from millstream.pipeline.model import Create, Sink, Upkeep
from millstream.pipeline.tables import merging
from millstream.pipeline.tables.open_table import DEAD_LETTERS_SUFFIX, open_table
from millstream.pipeline.tables.parquet import ParquetTable
from struck_steps import edges, plant
from waits import Patience, moment

pytestmark = [pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "5"))
SEED = os.environ.get("MILLSTREAM_SEED", "7")
KEYS, RECORDS = 40, 20
STEPS = {
    "millstream.pipeline.tables.delta.DeltaTable": (
        "prepare",
        "claim",
        "commit",
        "merge",
        "_properties",
        "_write",
        "expire",
    ),
    "millstream.pipeline.tables.iceberg.IcebergTable": (
        "prepare",
        "claim",
        "commit",
        "merge",
        "_add",
        "_once",
        "expire",
    ),
    "millstream.pipeline.tables.parquet.ParquetTable": ("prepare", "claim", "commit"),
    "millstream.pipeline.commit.TableSink": (
        "take",
        "open",
        "commit",
        "_require_files",
        "_publish",
        "_merge",
        "_expire",
    ),
    "millstream.pipeline.merging_sink.MergingSink": ("open", "_commit", "_keep_deletes", "_merge", "_forget"),
    "millstream.pipeline.keyed_sink.ChangelogSink": ("open", "filled"),
    "millstream.pipeline.files.FileWriter": ("write", "close"),
}
KINDS = {"delta": "DeltaTable", "iceberg": "IcebergTable", "s3": "DeltaTable", "parquet": "ParquetTable"}
CASES = [
    (where, mode) for where in ("delta", "iceberg", "s3") for mode in ("append", "partitioned", "upsert", "changelog")
]
CASES += [("parquet", "append"), ("parquet", "changelog")]


def records(number):
    """The records of a batch: key, value or None, partition, offset."""
    chance = random.Random(number)
    keys = [chance.randrange(KEYS) for _ in range(RECORDS)]
    offsets = range(RECORDS * number, RECORDS * (number + 1))
    return [
        (key, None if chance.random() < 0.2 else f"n{offset}", key % 2, offset)
        for key, offset in zip(keys, offsets, strict=True)
    ]


def ends(number):
    """Where a batch begins, by partition."""
    found = {}
    for before in range(number):
        found |= {partition: offset + 1 for _, _, partition, offset in records(before)}
    return found


class Appends:
    """A table that records with a value are appended to, and dead letters for those without."""

    def __init__(self, directory, kind, target, *, partitioned):
        create = Create(partition=["part"]) if partitioned else Create()
        self.declared, self.directory = Sink(**{kind: target}, create=create), str(directory)
        self.table = open_table(self.declared, self.directory)
        self.letters = open_table(self.declared, self.directory, suffix=DEAD_LETTERS_SUFFIX)
        self.sink = TableSink(self.table, self.letters, pipeline="p", sink="s")
        self.sink.take()
        self.schema = self.sink.open(SCHEMA.append(pa.field("part", pa.int64())))

    def put(self, number):
        def files(location, schema, rows):
            writer = FileWriter(location, f"part-{number}-{os.getpid()}", schema)
            writer.write(conform(pa.RecordBatch.from_pylist(rows), schema))
            return tuple(writer.close())

        rows, letters = [], []
        for key, value, partition, offset in records(number):
            place = {"_topic": "t", "_partition": partition, "_offset": offset, "_timestamp": T0}
            row = {"id": key, "name": value, "part": key % 3, **place}
            letter = {"topic": "t", "partition": partition, "offset": offset, "error": "none", "value": b"", "key": b""}
            (letters if value is None else rows).append({**letter, "timestamp": T0} if value is None else row)
        self.sink.commit(
            Batch(
                query="q",
                number=number,
                offsets=json.dumps(positions(ends(number + 1)).to_json()),
                files=files(self.table.location, self.schema, rows),
                rejected=len(letters),
                dead_letters=files(self.letters.location, self.sink.letters_schema, letters) if letters else (),
            )
        )


class Changes(Upserts):
    """A table with keys, or a changelog."""

    def put(self, number):
        self.number, self.ends = number, ends(number)
        self.sink.commit(self.batch(records(number)))


def opened(where, mode, directory):
    kind = "delta" if where == "s3" else where
    target = {"iceberg": "ns.t", "s3": f"s3://lake/{mode}"}.get(where, "t")
    if mode in ("append", "partitioned"):
        return Appends(directory, kind, target, partitioned=mode == "partitioned")
    return Changes(directory, kind, mode=mode, target=target)


def rows_of(table):
    """All rows of a table."""
    if isinstance(table, ParquetTable):
        return dataset(os.path.dirname(table.location.address), partitioning="hive").to_table().to_pylist()
    return [row for batch in table.scan() for row in batch.to_pylist()]


def write(environment, where, mode, directory, count, strike):
    """A writer: commit the batches up to ``count`` that the checkpoint lacks. Small files are joined at once."""
    os.environ.update(environment)
    upkeep.COMPACT_EVERY, merging._SMALL_FILES = 2, 6
    if strike is not None:
        plant(*strike, signal.SIGKILL)
    with open(directory / "writer.log", "w") as log:
        os.dup2(log.fileno(), 2)
    checkpoint = directory / "finished"
    table = opened(where, mode, directory)
    table.sink.upkeep.expire(Upkeep(every="100ms", keep="1s"))
    for number in range(int(checkpoint.read_text()) if checkpoint.exists() else 0, count):
        table.put(number)
        checkpoint.with_suffix(".new").write_text(str(number + 1))
        checkpoint.with_suffix(".new").rename(checkpoint)


class Writers:
    """Writers of one table, one after the other. ``killed`` counts those that a kill has struck."""

    def __init__(self, environment, where, mode, directory):
        self._given, self._directory = (environment, where, mode, directory), directory
        self._random = random.Random(f"{SEED} {where} {mode}")
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload([__name__])
        self._steps = [step for step in edges(STEPS) if ".tables." not in step[0] or step[0].endswith(KINDS[where])]
        self._random.shuffle(self._steps)
        self._run_s = 2.0
        self.count, self.killed = 0, 0

    def run(self, strike=None, kill_after_s=None):
        """Run one; whether it was killed before it came to its end."""
        self.count += 3
        writer = self._processes.Process(target=write, args=(*self._given, self.count, strike))
        begun, patience = time.monotonic(), Patience(600)
        writer.start()
        while writer.exitcode is None:
            if kill_after_s is not None and time.monotonic() - begun > kill_after_s:
                writer.kill()
            patience.check(strike)
            moment(0.002)
        writer.join()
        if writer.exitcode == 0 and strike is None:
            self._run_s = time.monotonic() - begun
        assert writer.exitcode in (0, -signal.SIGKILL), (self._directory / "writer.log").read_text()[-3000:]
        self.killed += writer.exitcode != 0
        return writer.exitcode != 0

    def kill(self):
        """Run one that is to be killed, at a step or at a random moment by turns."""
        if self.count % 2:
            self.run(kill_after_s=self._random.uniform(0, self._run_s))
        else:
            self._steps.append(self._steps.pop(0))
            self.run(strike=(*self._steps[-1], self._random.randrange(4)))


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """What lets processes reach a bucket: one for all tests, because processes keep a store that they have opened."""
    with buckets.moto() as url, pytest.MonkeyPatch.context() as patched:
        environment = buckets.environment(url, tmp_path_factory.mktemp("home"))
        for name, value in environment.items():
            patched.setenv(name, value)
        yield environment


@pytest.mark.parametrize(("where", "mode"), CASES)
def test_a_table_is_exact_after_its_writers_were_killed(bucket, where, mode, tmp_path):
    writers = Writers(bucket, where, mode, tmp_path)
    patience = Patience(3000)
    while writers.killed < KILLS:
        writers.kill()
        patience.check(writers.killed)
    assert not writers.run()
    print(f"{where}, {mode}: {writers.killed} of {writers.count // 3} writers were killed")
    table = opened(where, mode, tmp_path)
    rows = rows_of(table.sink.table)
    sent = [record for number in range(writers.count) for record in records(number)]
    if mode == "upsert":
        latest = {key: value for key, value, *_ in sent}
        expected = collections.Counter((key, value) for key, value in latest.items() if value is not None)
        assert collections.Counter((row["id"], row["name"]) for row in rows) == expected
    elif mode == "changelog":
        assert collections.Counter((row["_offset"], row["id"], row["name"]) for row in rows) == collections.Counter(
            (offset, key, value) for key, value, _, offset in sent
        )
    else:
        letters = [row["offset"] for row in rows_of(table.letters)]
        assert sorted(letters) == [offset for _, value, _, offset in sent if value is None]
        assert collections.Counter((row["_offset"], row["id"], row["name"]) for row in rows) == collections.Counter(
            (offset, key, value) for key, value, _, offset in sent if value is not None
        )

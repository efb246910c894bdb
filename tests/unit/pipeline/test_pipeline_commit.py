"""One batch, once, in every kind of table; failures at every step of a commit."""

import os
import time
from unittest.mock import Mock

import deltalake
import msgspec
import pyarrow as pa
import pytest
from pyarrow.dataset import dataset

from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.dead_letters import REPLAY_QUERY, encode_record_offsets, remove_dead_letters
from millstream.pipeline.files import FileWriter
from millstream.pipeline.layout import conform
from millstream.pipeline.model import Sink
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA
from millstream.pipeline.tables.open_table import DEAD_LETTERS_SUFFIX, open_table

SCHEMA = pa.schema([("n", pa.int64())])
LETTER = {"topic": "t", "partition": 0, "offset": 0, "timestamp": None, "key": None, "value": b"?", "error": "bad"}


class Faulty:
    """A table whose next commits fail: before they land, after they landed, or so that nothing can be asked."""

    def __init__(self, table):
        self.table = table
        self.plan = []
        self.mute = False

    def __getattr__(self, name):
        return getattr(self.table, name)

    def commit(self, record, files, after=None):
        fault = self.plan.pop(0) if self.plan else None
        if fault == "before":
            raise OSError("no answer")
        version = self.table.commit(record, files, after)
        if fault == "after":
            raise OSError("no answer")
        if fault == "mute":
            self.mute = True
            raise OSError("no answer")
        return version

    def committed(self, owner, query):
        if self.mute:
            raise OSError("silence")
        return self.table.committed(owner, query)


class Bench:
    """A sink of two tables on disk; ``reopen`` is what a new driver does."""

    def __init__(self, directory, kind):
        self.directory = directory
        self.declared = Sink(**{kind: "ns.t" if kind == "iceberg" else "t"})
        self.kind = kind
        self.reopen()

    def reopen(self):
        self.rows = Faulty(open_table(self.declared, str(self.directory)))
        self.letters = Faulty(open_table(self.declared, str(self.directory), suffix=DEAD_LETTERS_SUFFIX))
        self.pauses = []
        self.sink = TableSink(self.rows, self.letters, pipeline="p", sink="s", pause=self.pauses.append)
        self.schema = self.sink.open(SCHEMA)
        return self

    def batch(self, number, *values, bad=0, query="q"):
        def file(location, schema, rows):
            writer = FileWriter(location, f"part-{number}", schema)
            writer.write(conform(pa.RecordBatch.from_pylist(rows), schema))
            return tuple(writer.close())

        files = file(self.rows.location, self.schema, [{"n": value} for value in values])
        letters = file(self.letters.location, self.sink.letters_schema, [LETTER] * bad)
        return Batch(query=query, number=number, offsets="{}", files=files, rejected=bad, dead_letters=letters)

    def held(self):
        rows, letters = (self.read(table) for table in (self.rows.table, self.letters.table))
        return sorted(row["n"] for row in rows), len(letters)

    def read(self, table):
        """The rows as another reader sees them."""
        if self.kind == "iceberg":
            return table._fresh().scan().to_arrow().to_pylist()
        if self.kind == "delta":
            return pa.table(deltalake.DeltaTable(table.location.address).to_pyarrow_table()).to_pylist()
        return dataset(os.path.dirname(table.location.address), partitioning="hive").to_table().to_pylist()


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def bench(tmp_path, request):
    return Bench(tmp_path, request.param)


def test_a_batch_is_there_once_however_often_it_is_committed(bench):
    outcomes = [bench.sink.commit(bench.batch(0, 1, 2, bad=3)) for _ in range(3)]
    assert [outcome.repeated for outcome in outcomes] == [False, True, True]
    bench.reopen().sink.commit(bench.batch(0, 1, 2, bad=3))
    assert bench.held() == ([1, 2], 3)
    assert (bench.sink.last.total_rows, bench.sink.last.total_rejected) == (2, 3)


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("where", ["rows", "letters"])
def test_a_commit_that_raises_is_looked_up(bench, fault, where):
    getattr(bench, where).plan = [fault, "before"]
    bench.sink.commit(bench.batch(0, 1, bad=1))
    assert bench.held() == ([1], 1)
    assert bool(bench.pauses) == (fault == "before")


def test_an_outcome_that_cannot_be_looked_up_is_said_to_be_unknown(bench):
    bench.rows.plan = ["mute"]
    with pytest.raises(OutcomeUnknown, match="the next run finds out"):
        bench.sink.commit(bench.batch(0, 1, bad=2))
    bench.reopen().sink.commit(bench.batch(0, 1, bad=2))
    assert bench.held() == ([1], 2)


def test_a_commit_that_does_not_succeed_is_given_up_and_can_be_tried_again(bench):
    bench.rows.plan = ["before"] * 4
    with pytest.raises(Unavailable):
        bench.sink.commit(bench.batch(0, 1))
    bench.sink.commit(bench.batch(0, 1))
    assert bench.held() == ([1], 0)


def test_a_crash_between_rows_and_dead_letters_is_made_good_by_the_next_run(bench):
    bench.letters.plan = ["before"] * 4
    with pytest.raises(Unavailable):
        bench.sink.commit(bench.batch(0, 1, bad=2))
    assert bench.held() == ([1], 0)
    bench.reopen()
    assert bench.held() == ([1], 2)
    bench.sink.commit(bench.batch(0, 1, bad=5))  # repeated with another outcome: what was committed counts
    bench.sink.commit(bench.batch(1, 2, bad=1))
    assert bench.held() == ([1, 2], 3)


def test_dead_letters_outlive_a_crash_while_their_directory_is_prepared(tmp_path, monkeypatch):
    bench, rename = Bench(tmp_path, "parquet"), os.rename

    def crash(source, target):
        if "_dead_letters/millstream_batch=" in target:
            raise OSError("the process was killed")
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", crash)
        with pytest.raises(Unavailable):
            bench.sink.commit(bench.batch(0, 1, bad=2))
    bench.reopen()
    assert bench.held() == ([1], 2)


def test_dead_letters_whose_files_were_cleaned_away_after_a_crash_leave_a_table_that_can_be_read(bench):
    """As ``VACUUM`` and the removal of orphan files do with a retention of 0."""
    bench.letters.plan = ["before"] * 4
    with pytest.raises(Unavailable):
        bench.sink.commit(bench.batch(0, 1, bad=2))
    for path in bench.directory.rglob("*dead_letters*/**/part-*"):
        path.unlink()
    bench.reopen()
    assert bench.held() == ([1], 0)
    bench.sink.commit(bench.batch(1, 2, bad=1))
    assert bench.held() == ([1, 2], 1)


def test_patterns_find_no_files_of_parquet_batches_that_are_not_committed(tmp_path, monkeypatch):
    bench = Bench(tmp_path, "parquet")

    def committed():
        return list(tmp_path.rglob("*.parquet"))

    bench.batch(0, 1, bad=2)
    assert not committed()
    batch = bench.batch(0, 1, bad=2)
    with monkeypatch.context() as patched, pytest.raises(Unavailable):
        patched.setattr(os, "rename", Mock(side_effect=OSError("the process was killed")))
        bench.sink.commit(batch)
    bench.reopen()
    assert not committed()
    bench.sink.commit(bench.batch(0, 1, bad=2))
    assert len(committed()) == 2
    assert bench.held() == ([1], 2)


def test_all_batches_of_a_parquet_directory_say_what_its_columns_are(tmp_path):
    bench = Bench(tmp_path, "parquet")
    bench.schema = bench.sink.open(pa.schema([("n", pa.int64()), ("m", pa.string())]))
    bench.sink.commit(bench.batch(0, 1))
    bench.schema = bench.sink.open(SCHEMA)
    bench.sink.commit(bench.batch(1, 2))
    bench.sink.commit(bench.batch(2))
    for name, kind in (("m", pa.int64()), ("M", pa.string())):
        with pytest.raises(Rejected, match=f"column {name} is {kind}, in the files m is string"):
            bench.sink.open(pa.schema([("n", pa.int64()), (name, kind)]))


def test_files_that_ended_runs_have_left_in_a_parquet_directory_are_removed(tmp_path):
    bench = Bench(tmp_path, "parquet")
    (old,), (young,) = bench.batch(0, 1).files, bench.batch(0, 1).files
    staging = bench.rows.location.address
    week_ago = time.time() - 7 * 86_400 - 60
    os.utime(f"{staging}/{old.path}", (week_ago, week_ago))
    bench.reopen()
    assert [name for name in os.listdir(staging) if name.startswith("part-")] == [young.path]
    bench.sink.commit(bench.batch(0, 1))
    assert bench.held() == ([1], 0)


def test_batch_numbers_of_another_checkpoint_mean_nothing(bench):
    bench.sink.commit(bench.batch(0, 1))
    bench.sink.commit(bench.batch(1, 2))
    bench.sink.commit(bench.batch(0, 3, query="another"))
    assert bench.held() == ([1, 2, 3], 0)


def test_another_sink_of_the_same_table_keeps_its_own_record(bench):
    bench.sink.commit(bench.batch(0, 1))
    other = TableSink(bench.rows, None, pipeline="p", sink="other")
    other.open(SCHEMA)
    other.commit(bench.batch(0, 2))
    assert bench.held()[0] == [1, 2]
    assert bench.reopen().sink.last.total_rows == 1


def test_a_table_gets_new_columns_and_refuses_changed_ones(bench):
    bench.sink.commit(bench.batch(0, 1))
    wider = bench.sink.open(pa.schema([("n", pa.int64()), ("m", pa.string())]))
    assert wider.names == ["n", "m"]
    with pytest.raises(Rejected, match="column n is string, in the "):
        bench.sink.open(pa.schema([("n", pa.string())]))
    bench.sink.commit(bench.batch(1, 2))
    assert bench.held()[0] == [1, 2]


def test_many_small_files_are_merged_and_no_row_is(bench):
    for number in range(40):
        bench.sink.commit(bench.batch(number, number, bad=number % 2))
    assert bench.held() == (list(range(40)), 20)
    if bench.kind != "parquet":
        assert bench.rows.compact() == 0, "the sink has merged them"
    assert bench.reopen().sink.last.total_rows == 40
    bench.sink.commit(bench.batch(40, 40))
    assert bench.held() == (list(range(41)), 20)


def letter(offset, topic="t", partition=0):
    return {**LETTER, "topic": topic, "partition": partition, "offset": offset}


class Replay:
    """A replay of dead letters into the bench's table: rows of its own, and letters that leave."""

    def __init__(self, bench):
        self.bench = bench
        self.sink = TableSink(bench.rows, None, pipeline="p", sink="s~replay", pause=bench.pauses.append)
        self.sink.open(SCHEMA)

    def commit(self, number, *values):
        batch = self.bench.batch(number, *values, query=REPLAY_QUERY)
        record_offsets = encode_record_offsets({"t": {0: [0, 2]}, "u": {1: [7]}})
        return self.sink.commit(msgspec.structs.replace(batch, offsets=record_offsets)).record


@pytest.fixture(params=["delta", "iceberg"])
def dead_letters_bench(tmp_path, request):
    bench = Bench(tmp_path, request.param)
    writer = FileWriter(bench.letters.location, "part", bench.sink.letters_schema)
    rows = [letter(0), letter(1), letter(2), letter(0, "u", 1), letter(7, "u", 1), letter(7)]
    writer.write(conform(pa.RecordBatch.from_pylist(rows, DEAD_LETTER_SCHEMA), bench.sink.letters_schema))
    files = tuple(writer.close())
    bench.sink.commit(Batch(query="q", number=0, offsets="{}", files=(), rejected=6, dead_letters=files))
    return bench


def record_offsets_of(bench):
    rows = bench.read(bench.letters.table)
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


LEFT = [("t", 0, 1), ("t", 0, 7), ("u", 1, 0)]


def test_letters_that_were_replayed_leave_their_table_and_no_others_do(dead_letters_bench):
    scanned = [row for batch in dead_letters_bench.letters.scan() for row in batch.to_pylist()]
    assert len(scanned) == 6
    record = Replay(dead_letters_bench).commit(0, 5, 6)
    remove_dead_letters(dead_letters_bench.letters, record, dead_letters_bench.pauses.append)
    assert record_offsets_of(dead_letters_bench) == LEFT
    assert dead_letters_bench.held() == ([5, 6], 3)


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_replay_that_ends_between_its_commits_is_finished_by_whoever_opens_the_table(dead_letters_bench, fault):
    dead_letters_bench.rows.plan = [fault]
    Replay(dead_letters_bench).commit(0, 5)
    assert len(record_offsets_of(dead_letters_bench)) == 6
    dead_letters_bench.reopen()
    assert record_offsets_of(dead_letters_bench) == LEFT
    dead_letters_bench.sink.commit(dead_letters_bench.batch(1, 1, bad=2))
    version = dead_letters_bench.letters.version()
    dead_letters_bench.reopen()
    assert dead_letters_bench.letters.version() == version  # nothing is removed twice
    assert dead_letters_bench.held() == ([1, 5], 5)


def test_every_record_says_where_its_sink_began(bench):
    bench.sink.reads.begin = "here"
    bench.sink.commit(bench.batch(0, 1))
    bench.reopen()
    bench.sink.commit(bench.batch(1, 2))
    assert bench.rows.last("p.s").begin == "here"
    bench.reopen().sink.reads.begin = "elsewhere"
    bench.sink.commit(bench.batch(2, 3))
    assert bench.rows.last("p.s").begin == "elsewhere"

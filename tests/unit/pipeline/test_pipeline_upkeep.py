"""Upkeep beside the writer: a table of many small commits stays bounded, and readers see every row throughout."""

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from millstream.pipeline.checks import problems_of
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.files import FileWriter
from millstream.pipeline.layout import conform
from millstream.pipeline.model import Pipeline, Sink, Source, Upkeep
from millstream.pipeline.tables import iceberg, merging
from millstream.pipeline.tables.open_table import open_table
from millstream.pipeline.upkeep import Schedule

SCHEMA = pa.schema([("n", pa.int64())])
SINKS = {"iceberg": Sink(iceberg="a.t"), "delta": Sink(delta="t")}


class Written:
    """A table that is written to, a row a commit. The clock goes on a second with each."""

    def __init__(self, place, sink, *, every, keep):
        self.place, self.sink, self.count, self.now_s = place, sink, 0, 0.0
        self.table = open_table(sink, str(place))
        self.made = TableSink(self.table, None, pipeline="p", sink="s")
        self.schema = self.made.open(SCHEMA)
        self.made.upkeep = Schedule(compact=True, clock=lambda: self.now_s)
        self.made.upkeep.expire(Upkeep(every=every, keep=keep))

    def commit(self, count):
        for _ in range(count):
            writer = FileWriter(self.table.location, f"part-{self.count}", self.schema)
            writer.write(conform(pa.RecordBatch.from_pylist([{"n": self.count}], SCHEMA), self.schema))
            self.made.commit(Batch(query="q", number=self.count, offsets="{}", files=tuple(writer.close())))
            self.count, self.now_s = self.count + 1, self.now_s + 1

    def rows(self):
        found = open_table(self.sink, str(self.place))
        return sorted(value for batch in found.scan() for value in pa.table(batch.to_pydict())["n"].to_pylist())

    def files(self, suffix):
        return [path for path in Path(self.place).rglob(f"*{suffix}") if "_millstream" not in path.parts]


@pytest.fixture
def few_are_many(monkeypatch):
    for module in (merging, iceberg):
        monkeypatch.setattr(module, "_SMALL_FILES", 8)


def test_an_iceberg_table_keeps_a_bounded_number_of_files_and_snapshots(tmp_path, few_are_many):
    written = Written(tmp_path, SINKS["iceberg"], every="20s", keep="0s")
    seen = []
    for _ in range(3):
        written.commit(41)
        table = written.table._catalog.load_table("a.t")
        seen.append((len(table.snapshots()), len(written.files(".parquet")), len(written.files(".avro"))))
        assert written.rows() == list(range(written.count))
    assert all(snapshots <= 25 and parquet <= 40 and avro <= 40 for snapshots, parquet, avro in seen)
    assert len(written.files(".metadata.json")) <= 22
    assert written.table.last("p.s").batch == written.count - 1


def test_what_one_expiry_has_removed_does_not_stop_the_next(tmp_path, few_are_many):
    written = Written(tmp_path, SINKS["iceberg"], every="1000s", keep="0s")
    for count in (10, 1, 1):
        written.commit(count)
        assert written.table.expire(0) > 0
    assert len(written.files(".parquet")) == 3, "one that is merged, and two"
    assert len(written.files(".avro")) <= 5
    assert written.rows() == list(range(12))


def test_removed_files_of_a_delta_table_go_by_schedule(tmp_path, few_are_many, monkeypatch):
    written = Written(tmp_path, SINKS["delta"], every="30s", keep="1h")
    written.commit(29)
    assert len(written.files(".parquet")) > written.count, "files that were merged, and what they were merged to"
    monkeypatch.setattr(written.made.upkeep, "keep_days", 0.0)
    written.commit(2)
    assert len(written.files(".parquet")) < 15
    assert written.rows() == list(range(written.count))


def test_files_that_a_snapshot_of_a_tag_or_of_a_reader_names_stay(tmp_path, few_are_many):
    written = Written(tmp_path, SINKS["iceberg"], every="1000s", keep="0s")
    written.commit(9)
    table = written.table._catalog.load_table("a.t")
    tagged = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(tagged, "kept").commit()
    written.commit(20)
    written.table.expire(0)
    table = written.table._catalog.load_table("a.t")
    rows = table.scan(snapshot_id=tagged).to_arrow()["n"].to_pylist()
    assert sorted(rows) == list(range(9))
    assert written.rows() == list(range(29))


def test_upkeep_that_fails_stops_nothing_and_comes_again(tmp_path, few_are_many, monkeypatch):
    written = Written(tmp_path, SINKS["iceberg"], every="5s", keep="0s")

    def failing(keep_days):
        raise OSError("seeded")

    with monkeypatch.context() as patched:
        patched.setattr(written.table, "expire", failing)
        written.commit(12)
    before = len(written.table._catalog.load_table("a.t").snapshots())
    written.commit(6)
    assert len(written.table._catalog.load_table("a.t").snapshots()) < before
    assert written.rows() == list(range(18))


def test_an_owner_who_keeps_versions_keeps_them(tmp_path):
    written = Written(tmp_path, SINKS["iceberg"], every="1s", keep="0s")
    with written.table._catalog.load_table("a.t").transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "3600000"})
    written.commit(6)
    assert len(written.table._catalog.load_table("a.t").snapshots()) >= 6


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (Sink(delta="t", upkeep=Upkeep(every="soon")), "no duration"),
        (Sink(delta="t", upkeep=Upkeep(keep="1w")), "no duration"),
        (Sink(parquet="t", upkeep=Upkeep()), "no versions"),
        (Sink(topic="t", upkeep=Upkeep()), "upkeep is for tables"),
    ],
)
def test_upkeep_that_cannot_be_is_refused(sink, said):
    pipeline = Pipeline(pipeline="p", source=Source(topic="t"), sinks=[sink])
    assert any(said in problem.message for problem in problems_of(pipeline))

"""One row for each key: the latest record wins, whatever order records come in, and deleted keys stay deleted.

Rows go the way that a batch of the pipeline goes, without Spark. ``Model`` is the judge: a dictionary by key that knows
the whole history of the topic.
"""

import contextlib
import datetime as dt
import decimal
import itertools
import json
import math
import random
import threading
from urllib.parse import quote

import deltalake
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import StringType
from upsert_support import SCHEMA, T0, UTC_US, Upserts, positions

from millstream.errors import Rejected
from millstream.pipeline.changes import PLACES, KeyIndex, Places, newer
from millstream.pipeline.generations import advanced, generations_of, later
from millstream.pipeline.keyed_query import KeyedQuery
from millstream.pipeline.keys import KeyDecoder, require_key
from millstream.pipeline.maintain import maintain
from millstream.pipeline.merging_sink import _FORGOTTEN
from millstream.pipeline.model import Create, Pipeline, Sink, Source, Upkeep
from millstream.pipeline.tables import merging
from millstream.pipeline.tables.delta_files import _PLAIN, removals
from millstream.pipeline.tables.open_table import open_table
from millstream.pipeline.upkeep import Schedule
from waits import moment


@pytest.fixture(params=["delta", "iceberg"])
def kind(request):
    return request.param


@pytest.fixture
def upserts(tmp_path, kind):
    return Upserts(tmp_path, kind)


def test_the_latest_record_of_a_key_is_its_row_and_a_tombstone_deletes_it(upserts):
    upserts.put((1, "a", 0, 0), (2, "b", 0, 1), (1, "c", 0, 2))
    assert upserts.held() == {1: "c", 2: "b"}
    upserts.put((1, None, 0, 3), (3, "d", 0, 4), (2, "e", 0, 5))
    assert upserts.held() == {2: "e", 3: "d"}
    upserts.put((1, "again", 0, 6))
    assert upserts.held() == {1: "again", 2: "e", 3: "d"}
    assert upserts.sink.last.total_rows == 7


def test_a_batch_is_there_once_however_often_it_is_committed(upserts):
    batch = upserts.batch([(1, "a", 0, 0), (2, None, 0, 1)])
    assert [upserts.sink.commit(batch).repeated for _ in range(2)] == [False, True]
    assert upserts.reopen().sink.commit(batch).repeated
    assert upserts.held() == {1: "a"}


def test_an_older_record_never_wins_nor_brings_a_deleted_key_back(upserts):
    upserts.put((1, "new", 0, 100), (2, None, 0, 101))
    backfill = Upserts(upserts.directory, upserts.kind, name="s~backfill")
    backfill.put((1, "old", 0, 5), (2, "old", 0, 6), (3, "old", 0, 7))
    assert upserts.held() == {1: "new", 3: "old"}
    upserts.put((2, "back", 0, 102), (3, None, 0, 103))
    backfill.put((2, "older", 0, 8), (3, "older", 0, 9))
    assert upserts.held() == {1: "new", 2: "back"}


def test_a_key_that_moves_when_partitions_are_added_keeps_its_latest_record(upserts):
    upserts.put((1, "first", 0, 500), (2, "kept", 0, 501), (5, "x", 0, 502))
    # Partition 1 appears; keys 1 and 5 move there. Its offsets are small, and its clock is behind.
    upserts.put((1, "moved", 1, 0, -50), (5, None, 1, 1, -50))
    assert upserts.held() == {1: "moved", 2: "kept"}
    backfill = Upserts(upserts.directory, upserts.kind, name="s~backfill")
    backfill.ends[1] = 0
    backfill.put((1, "old", 0, 400, 9999), (5, "old", 0, 401, 9999))
    assert upserts.held() == {1: "moved", 2: "kept"}


def test_a_topic_that_was_made_again_is_later_than_the_one_before(upserts):
    upserts.put((1, "old", 0, 900), (2, "old", 0, 901), (3, None, 0, 902))
    upserts.topic_id, upserts.ends = "2" * 32, {}
    upserts.put((1, "new", 0, 0), (3, "new", 0, 1))
    assert upserts.held() == {1: "new", 2: "old", 3: "new"}


def test_a_crash_between_deleted_keys_and_the_merge_is_made_good(upserts, monkeypatch):
    upserts.put((1, "a", 0, 0), (2, "b", 0, 1))
    batch = upserts.batch([(1, None, 0, 2), (2, "c", 0, 3), (1, "d", 0, 4), (2, None, 0, 5), (3, None, 0, 6)])
    merge = type(upserts.sink.table).merge

    def failing(self, *given):
        if self is upserts.sink.table:
            raise OSError("seeded")
        return merge(self, *given)

    with monkeypatch.context() as patched, pytest.raises(Exception, match="seeded"):
        patched.setattr(type(upserts.sink.table), "merge", failing)
        upserts.sink.commit(batch)
    assert upserts.held() == {1: "a", 2: "b"}
    assert not upserts.reopen().sink.commit(batch).repeated
    assert upserts.held() == {1: "d"}


def test_another_key_than_that_of_the_rows_is_refused(tmp_path):
    upserts = Upserts(tmp_path, "delta")
    upserts.put((1, "a", 0, 0))
    with pytest.raises(Rejected, match="has one row for each id, and key: names name"):
        Upserts(tmp_path, "delta", key="name")
    upserts.reopen().put((1, "b", 0, 1))
    assert len(upserts.held()) == 1


def test_only_files_with_the_keys_are_written_again(upserts):
    for begin in range(0, 400, 100):
        upserts.put(*((begin + number, "v", 0, begin + number) for number in range(100)))
    before = upserts.files()
    upserts.put((150, "new", 0, 400), (151, None, 0, 401), (9999, "more", 0, 402))
    assert len(before - upserts.files()) == 1
    assert upserts.held() == {n: "v" for n in range(400) if n not in (150, 151)} | {150: "new", 9999: "more"}


def test_small_files_are_joined_in_the_order_of_the_key(upserts, monkeypatch):
    monkeypatch.setattr(merging, "_SMALL_FILES", 5)
    for number in range(6):
        upserts.put((number * 7 % 6, f"{number}", 0, number))
    before = upserts.held()
    assert upserts.sink.table.compact() == 5
    assert (upserts.held(), len(upserts.files())) == (before, 1)
    assert upserts.table().column("id").to_pylist() == sorted(before)
    assert upserts.sink.table.compact() == 0


KEYS_OF_TYPES = {
    pa.int8(): [-128, 0, 127],
    pa.int64(): [-(2**63), 0, 2**63 - 1],
    pa.string(): ["", "z" * 3000, "\U0010ffff" * 70, "a" * 64 + "b", "a" * 64 + "c", "é"],
    pa.binary(): [b"", b"\xff" * 40, b"\0"],
    pa.decimal128(38, 10): [
        decimal.Decimal("-" + "9" * 27 + ".0000000001"),
        decimal.Decimal("0.1"),
        decimal.Decimal(10**27),
    ],
    pa.decimal128(9, 2): [decimal.Decimal("0.07"), decimal.Decimal("9999999.99"), decimal.Decimal("-1.15")],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    UTC_US: [T0 + dt.timedelta(microseconds=number) for number in (1, 999, 1001)],
    pa.bool_(): [True, False],
}


@pytest.mark.parametrize("of", list(KEYS_OF_TYPES), ids=str)
def test_bounds_of_files_hide_no_key_of_any_type(tmp_path, kind, of):
    upserts = Upserts(tmp_path, kind, schema=SCHEMA.set(0, pa.field("id", of)))
    keys = KEYS_OF_TYPES[of]
    for turn in range(3):  # one file for all keys, then each key alone
        groups = [[key] for key in keys] if turn else [keys]
        for group in groups:
            offset = max(upserts.ends.values(), default=0)
            upserts.put(*((key, {"id": key, "name": f"{turn}"}, 0, offset + n) for n, key in enumerate(group)))
    assert upserts.held() == dict.fromkeys(keys, "2")


def test_maintenance_joins_the_files_of_a_table_and_of_its_deleted_keys(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(merging, "_SMALL_FILES", 3)
    upserts = Upserts(tmp_path, kind)
    for number in range(4):
        upserts.put((number, f"{number}", 0, 2 * number), (100 + number, None, 0, 2 * number + 1))
    declared = msgspec.structs.replace(upserts.declared, name="s")
    pipeline = Pipeline(pipeline="p", source=Source(topic="t"), sinks=[declared])
    done = maintain(pipeline, str(tmp_path), keep_days=7)
    assert [(one.table.rpartition("_")[2] == "deletes", one.merged) for one in done] == [(False, 3), (True, 3)]
    assert upserts.held() == {number: f"{number}" for number in range(4)}
    Upserts(tmp_path, kind, name="s~backfill").put((101, "old", 0, 0), (7, "new", 0, 1))
    assert upserts.held() == {number: f"{number}" for number in range(4)} | {7: "new"}


@pytest.mark.parametrize(("kind", "seed"), [("delta", 0), ("delta", 1), ("delta", 2), ("iceberg", 3)])
def test_any_history_in_any_order_of_batches_gives_the_same_rows(tmp_path, kind, seed):
    """Records of a partition come in order; a backfill and a replay bring older ones in between."""
    order = random.Random(seed)
    history = [(order.randrange(12), order.choice(["v", "v", None]), offset) for offset in range(60)]
    history = [(key, value and f"{value}{offset}", 0, offset) for key, value, offset in history]
    model = {key: value for key, value, _, _ in history}
    live, older = Upserts(tmp_path, kind), Upserts(tmp_path, kind, name="s~backfill")
    late = sorted(order.sample(range(60), 20))
    ways = {live: [r for r in history if r[3] not in late], older: [r for r in history if r[3] in late]}
    while any(ways.values()):
        way = order.choice([way for way, left in ways.items() if left])
        count = order.randrange(1, 12)
        way.put(*ways[way][:count])
        del ways[way][:count]
        if order.random() < 0.2:
            way.reopen()
    assert live.held() == {key: value for key, value in model.items() if value is not None}


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_foreign_table_is_merged_into_and_its_writer_goes_on(tmp_path, partitioned):
    rows = pa.table({"id": [1, 2, 3, 4], "name": ["a", "b", "c", "d"], "country": ["a b", "c%d", None, "é"]})
    place = str(tmp_path / "t")
    deltalake.write_deltalake(place, rows, partition_by=["country"] if partitioned else None)
    upserts = Upserts(tmp_path, "delta", schema=SCHEMA.append(pa.field("country", pa.string())))
    upserts.put(
        (1, {"id": 1, "name": "A", "country": "c%d"}, 0, 0), (3, {"id": 3, "name": "C", "country": "x/y"}, 0, 1)
    )
    upserts.put((2, None, 0, 2))
    foreign = pa.Table.from_pylist([{"id": 9, "name": "z", "country": "q"}])
    deltalake.write_deltalake(place, foreign, mode="append", schema_mode="merge")
    deltalake.DeltaTable(place).optimize.compact()
    upserts.put((9, {"id": 9, "name": "Z", "country": None}, 0, 3))
    deltalake.DeltaTable(place).vacuum(0, enforce_retention_duration=False, dry_run=False)
    found = upserts.table().select(["id", "name", "country"]).to_pylist()
    assert sorted((row["id"], row["name"], row["country"]) for row in found) == [
        (1, "A", "c%d"), (3, "C", "x/y"), (4, "d", "é"), (9, "Z", None),
    ]  # fmt: skip


def test_paths_are_encoded_as_the_library_does_it(tmp_path):
    """Otherwise a file that is taken out would stay in the table, unseen."""
    table = deltalake.DeltaTable.create(str(tmp_path), schema=pa.schema([("id", pa.int64())]))
    files = [
        merging.TableFile((quote(f"a{chr(code)}b", safe=_PLAIN), {}), 1, {}) for code in (*range(32, 127), 233, 8364)
    ]
    table.create_write_transaction(removals(deltalake, files, data_change=True), "append", table.schema())
    log = (tmp_path / "_delta_log" / "00000000000000000001.json").read_text().splitlines()
    paths = [json.loads(line)["remove"]["path"] for line in log if "remove" in line]
    assert paths == [file.own[0] for file in files]
    with pytest.raises(Rejected, match="in a form that cannot be taken out"):
        removals(deltalake, [merging.TableFile(("country=é/x.parquet", {}), 1, {})], data_change=True)


@pytest.mark.parametrize("create", [None, Create(partition=["name"])], ids=["whole", "partitioned"])
def test_of_two_merges_at_a_time_one_is_done_again(tmp_path, kind, create):
    one, other = (Upserts(tmp_path, kind, name=name, create=create) for name in ("s1", "s2"))
    one.put((1, "one", 0, 0))
    table, merge = one.sink.table, one.sink.table._add
    calls = []

    def raced(*given, **named):
        if not calls:
            calls.append(other.put((5, "other", 0, 7)))
        return merge(*given, **named)

    table._add = raced
    one.put((5, "one", 0, 3), (1, "two", 0, 4))
    assert calls
    assert one.held() == {1: "two", 5: "other"}


@pytest.mark.slow
def test_two_pipelines_a_foreign_writer_and_upkeep_share_a_table(tmp_path):
    """Each pipeline has a partition of its own; the later timestamp of a key wins, and the foreign rows stay."""
    order = random.Random(5)
    batches = [[(order.randrange(80), order.choice("xxxx-"), place * 10 + n) for n in range(10)] for place in range(40)]
    batches = [[(key, None if value == "-" else f"v{at}", at) for key, value, at in batch] for batch in batches]
    model = {key: value for batch in batches for key, value, _ in batch}
    pipelines = [Upserts(tmp_path, "delta", name=f"s{number}") for number in range(2)]
    done, failures = threading.Event(), []

    def merging(number):
        mine = pipelines[number]
        mine.sink._pause = lambda _: moment(order.random() / 10)
        for batch in batches[number::2]:
            mine.put(*((key, value, number, at, at) for key, value, at in batch))

    place = str(tmp_path / "t")
    columns = pa.schema(deltalake.DeltaTable(place).schema().to_arrow())

    def append(number):
        rows = pa.Table.from_pylist([{"id": 1000 + number, "name": "foreign"}], columns)
        deltalake.write_deltalake(place, rows, mode="append")

    def foreign():
        number = 1
        while not done.is_set():
            table = deltalake.DeltaTable(place)
            # What is refused beside a merge, or does not find a file that is vacuumed, is done by the next round.
            with contextlib.suppress(deltalake.exceptions.DeltaError, OSError):
                append(number)
                number += 1
            with contextlib.suppress(deltalake.exceptions.DeltaError, OSError):
                table.optimize.compact()
            moment(0.02)
            with contextlib.suppress(deltalake.exceptions.DeltaError, OSError):
                table.vacuum(0, enforce_retention_duration=False, dry_run=False)

    append(0)

    def noted(work, *given):
        try:
            work(*given)
        except Exception as error:  # noqa: BLE001 (told by the test)
            failures.append(error)

    threads = [threading.Thread(target=noted, args=(merging, number)) for number in range(2)]
    beside = threading.Thread(target=noted, args=(foreign,))
    for thread in (*threads, beside):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    beside.join()
    assert failures == []
    held = pipelines[0].held()
    assert {key: name for key, name in held.items() if key < 1000} == {k: v for k, v in model.items() if v is not None}
    assert held[1000] == "foreign"


def test_a_merge_beside_a_foreign_optimize_is_done_again(tmp_path):
    upserts = Upserts(tmp_path, "delta")
    upserts.put((1, "a", 0, 0))
    upserts.put((9, "b", 0, 1))
    add, calls = upserts.sink.table._add, []

    def raced(*given, **named):
        if not calls:
            calls.append(deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()["numFilesRemoved"])
        return add(*given, **named)

    upserts.sink.table._add = raced
    upserts.put((1, "c", 0, 2))
    assert calls == [2]
    assert upserts.held() == {1: "c", 9: "b"}


def test_rows_without_a_key_and_tombstones_that_do_not_decode_are_dead_letters(upserts):
    upserts.put((1, "a", 0, 0))
    upserts.put((None, "b", 0, 1), ("x", None, 0, 2), (1, "c", 0, 3), (2**70, None, 0, 4))
    assert upserts.held() == {1: "c"}
    assert [(letter["offset"], letter["value"], letter["column"]) for letter in upserts.letters] == [
        (1, b"v", "id"), (2, None, "id"), (4, None, "id"),
    ]  # fmt: skip
    assert "id is null in the result" in upserts.letters[0]["error"]


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
@pytest.mark.parametrize(("kind", "part", "key"), [("delta", "name", ""), ("iceberg", "truncate(10, id)", -(2**63))])
def test_a_record_without_a_partition_is_a_dead_letter_and_not_the_end(tmp_path, kind, part, key, mode):
    upserts = Upserts(tmp_path, kind, mode=mode, key=["id", "name"], create=Create(partition=[part]))
    upserts.reader.keys = KeyDecoder(Source(topic="t"), upserts.sink.table.columns(), ("id", "name"))
    unfit = {"id": 1, "name": key} if kind == "delta" else {"id": key, "name": "b"}
    gone = json.dumps(unfit)
    upserts.put((1, "a", 0, 0), (None, unfit, 0, 1), (gone, None, 0, 2), (4, "d", 0, 3))
    assert upserts.held() == {1: "a", 4: "d"}
    assert [(letter["offset"], letter["value"]) for letter in upserts.letters] == [(1, b"v"), (2, None)]


@pytest.mark.parametrize("float_", [pa.float32(), pa.float64()])
def test_partitions_of_numbers_that_compare_oddly_lose_and_repeat_no_row(tmp_path, kind, float_, monkeypatch):
    monkeypatch.setattr(merging, "_SMALL_FILES", 3)
    schema = SCHEMA.append(pa.field("part", float_))
    upserts = Upserts(tmp_path, kind, schema=schema, create=Create(partition=["part"]))
    values = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, None]
    for number in range(4 * len(values)):
        row = {"id": number % 5, "name": f"n{number}", "part": values[number % len(values)]}
        upserts.put((row["id"], row, 0, number))
    assert upserts.held() == {number % 5: f"n{number}" for number in range(23, 28)}
    while upserts.sink.table.compact():
        pass
    upserts.put(*((key, None, 0, 100 + key) for key in range(4)))
    assert upserts.held() == {4: "n24"}


def test_a_key_may_be_that_of_the_partitions(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(merging, "_SMALL_FILES", 3)
    for key in (["id", "name"], ["name"]):
        place = tmp_path / "-".join(key)
        place.mkdir()
        upserts = Upserts(place, kind, key=key, create=Create(partition=["name"]))
        for part in (SENT[:3], SENT[3:]):
            upserts.put(*((id_, name, 0, offset) for id_, name, offset in part))
        upserts.sink.table.compact()
        rows = [tuple(row.values()) for row in upserts.table().select(["id", "name", "_offset"]).to_pylist()]
        by_key = {(name if key == ["name"] else (name, id_)): (id_, name, offset) for id_, name, offset in SENT}
        assert sorted(rows) == sorted(by_key.values())


SENT = [(7, "a", 0), (5, "a", 1), (5, "b", 2), (6, "b", 3), (5, "a", 4), (3, "a", 5), (8, "c", 6)]


def test_a_batch_of_tombstones_alone_has_rows_of_every_type():
    schema = pa.schema([("u", pa.uuid()), ("l", pa.list_(pa.uuid())), ("n", pa.int64())])
    assert KeyedQuery._staged(None, [], schema).schema == schema


def test_forgotten_deletes_are_gone_and_older_records_are_refused_from_then_on(tmp_path, kind):
    upserts = Upserts(tmp_path, kind)
    upserts.put((1, None, 0, 5), (2, "a", 0, 6))
    assert upserts.sink._deletes.last("p.s" + _FORGOTTEN) is None
    upserts.sink._keep = dt.timedelta(seconds=-1)
    upserts.sink._merge()
    assert upserts.sink._deletes.last("p.s" + _FORGOTTEN) is not None
    assert sum(batch.num_rows for batch in upserts.sink._deletes.scan()) == 0
    upserts.reopen().put((3, "b", 0, 7))
    with pytest.raises(Rejected, match="forgotten keys that were deleted before 20"):
        Upserts(tmp_path, kind, name="s~backfill")


def test_old_versions_of_deleted_keys_are_expired_by_schedule_too(tmp_path):
    upserts = Upserts(tmp_path, "iceberg")
    upserts.sink.upkeep = Schedule(compact=True, clock=itertools.count().__next__)
    upserts.sink.upkeep.expire(Upkeep(every="1s", keep="0s"))
    for number in range(8):
        upserts.put((number, None, 0, number))
    for name in ("ns.t", "ns.t_deletes"):
        assert len(upserts.sink.table._catalog.load_table(name).snapshots()) == 1
    assert sum(batch.num_rows for batch in upserts.sink._deletes.scan()) == 8


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_a_changelog_has_each_change_with_its_kind_once(tmp_path, kind):
    log = Upserts(tmp_path, kind, mode="changelog")
    batch = log.batch([(1, "a", 0, 0), (1, "b", 0, 1), (2, None, 0, 2), (None, "c", 0, 3)])
    assert [log.sink.commit(batch).repeated for _ in range(2)] == [False, True]
    assert [letter["offset"] for letter in log.letters] == [3]
    log.reopen().put((1, None, 1, 0, -9))
    rows = log.table().select(["id", "name", "_change", "_partition", "_offset", "_generation"]).to_pylist()
    assert sorted((row["_generation"], row["_offset"], row["id"], row["name"], row["_change"]) for row in rows) == [
        (0, 0, 1, "a", "upsert"), (0, 1, 1, "b", "upsert"), (0, 2, 2, None, "delete"), (1, 0, 1, None, "delete"),
    ]  # fmt: skip
    assert log.sink.last.total_rows == 4


def test_a_key_of_several_columns_and_of_every_type_finds_its_rows():
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    columns = [
        pa.array(["a", "b", "a", "ü"]), pa.array([1, 1, 2, 2**62]), pa.array([b"", b"x", b"", b"\xff"]),
        pa.array([moment] * 3 + [dt.datetime(1, 1, 1, tzinfo=dt.UTC)], UTC_US),
        pa.array([1, 2, 3, 4], pa.decimal128(38, 0)), pa.array([True, False, True, False]),
        pa.array([dt.date(2026, 1, 1)] * 4),
    ]  # fmt: skip
    index = KeyIndex(columns)
    assert sorted(index.codes) == [0, 1, 2, 3]
    assert (
        index.find([column.take(pa.array([2, 0, 3])) for column in columns]).tolist() == index.codes[[2, 0, 3]].tolist()
    )
    other = [columns[0], pa.array([7, 1, 2, 2**62]), *columns[2:]]
    assert (index.find(other) >= 0).tolist() == [False, True, True, True]


def test_generations_follow_partitions_and_topics():
    first = advanced({}, {}, positions({0: 10, 1: 10}))
    assert first == advanced(first, {"t": {"0": 10, "1": 10}}, positions({0: 20, 1: 20}))
    grown = advanced(first, {"t": {"0": 20, "1": 25}}, positions({0: 30, 1: 30, 2: 5}))
    numbers = generations_of(
        grown, ["t"] * 5 + ["other"], np.array([0, 0, 1, 1, 2, 0]), np.array([19, 20, 24, 25, 0, 99])
    )
    assert numbers.tolist() == [0, 1, 0, 1, 1, 0]
    again = advanced(grown, {}, positions({0: 1}, topic_id="2" * 32))
    assert generations_of(again, ["t"], np.array([0]), np.array([0])).tolist() == [2]
    assert later(first, again) == later(again, first) == again


def test_the_text_of_a_key_has_the_type_of_its_column():
    def decoded(kind, *keys):
        (column,), errors, places = KeyDecoder(Source(topic="t"), pa.schema([("id", kind)]), ["id"]).decode(
            pa.array([key if key is None else key.encode("latin-1") for key in keys], pa.binary())
        )
        assert (errors.is_null().to_pylist(), set(places.drop_null().to_pylist()) <= {"id", "value"}) == (
            column.is_valid().to_pylist(), True,
        )  # fmt: skip
        return column.to_pylist()

    assert decoded(pa.int16(), "7", "-7", "70000", "7.5", "", None) == [7, -7, None, None, None, None]
    assert decoded(pa.string(), "a", "", "\xff") == ["a", "", None]
    assert decoded(pa.binary(), "a", None) == [b"a", None]
    assert decoded(pa.date32(), "2026-11-27", "yesterday") == [dt.date(2026, 11, 27), None]
    assert decoded(UTC_US, "2026-01-01T00:00:00Z", "x") == [T0, None]
    assert decoded(pa.bool_(), "true", "maybe") == [True, None]


def test_a_key_of_several_columns_is_a_json_object():
    schema = pa.schema([("country", pa.string()), ("id", pa.int64())])
    decoder = KeyDecoder(Source(topic="t"), schema, ["country", "id"])
    keys = [b'{"id": 1, "country": "de", "more": 0}', b'{"id": 1}', b"de", b'{"id": null, "country": "de"}', None]
    columns, errors, _ = decoder.decode(pa.array(keys))
    assert [column.to_pylist()[0] for column in columns] == ["de", 1]
    assert errors.is_null().to_pylist() == [True, False, False, False, False]
    assert "neither a key nor a value" in errors[4].as_py()


def test_identifier_fields_are_the_default_key_and_must_not_differ_from_a_named_one(tmp_path):
    Upserts(tmp_path, "iceberg").put((1, "a", 0, 0))
    unnamed = Upserts(tmp_path, "iceberg", key=None, name="s2")
    assert unnamed.sink.table.key == ("id",)
    with pytest.raises(Rejected, match=r"identifier fields \(id\), which are not the key \(name\)"):
        Upserts(tmp_path, "iceberg", key="name", name="s3")
    with pytest.raises(Rejected, match="which rows that are only appended may repeat"):
        open_table(Sink(iceberg="ns.t"), str(tmp_path)).inspect(None)
    with pytest.raises(Rejected, match="has no identifier fields: name the columns of its key"):
        _ = open_table(Sink(iceberg="ns.other", mode="upsert"), str(tmp_path)).key


POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
    ]
)


class DeleteManifest(ManifestWriterV2):
    def content(self):
        return ManifestContent.DELETES


def delete_positions(table, path, *positions):
    """Delete rows of a data file as Spark does it with ``merge-on-read``; pyiceberg cannot."""
    deletes = f"{path}-deletes.parquet"
    rows = [{"file_path": path, "pos": position} for position in positions]
    pq.write_table(pa.Table.from_pylist(rows, POSITIONS), deletes.removeprefix("file://"))
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=deletes, file_format=FileFormat.PARQUET, partition=Record(),
        record_count=len(rows), file_size_in_bytes=1, spec_id=0,
    )  # fmt: skip

    class Deleting(_FastAppendFiles):
        def _manifests(self):
            with DeleteManifest(
                self.spec(0), self.schema(), self.new_manifest_output(), self._snapshot_id, "null"
            ) as own:
                own.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, sequence_number=None,
                        file_sequence_number=None, data_file=file,
                    )
                )  # fmt: skip
            return [own.to_manifest_file(), *self._existing_manifests()]

    with table.transaction() as transaction, Deleting(Operation.DELETE, transaction, table.io):
        pass


def test_rows_that_others_delete_by_position_stay_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "_SMALL_FILES", 3)
    upserts = Upserts(tmp_path, "iceberg")
    upserts.put(*((key, f"n{key}", 0, key) for key in range(10)))
    catalog, (path,) = upserts.sink.table._catalog, upserts.files()
    ids = pq.read_table(path.removeprefix("file://")).column("id").to_pylist()
    delete_positions(catalog.load_table("ns.t"), path, ids.index(3), ids.index(7))
    wanted = {key: f"n{key}" for key in range(10) if key not in (3, 7)}
    assert upserts.held() == wanted
    upserts.put((4, "x", 0, 20), (3, "back", 0, 21), (5, None, 0, 22))
    for key in range(100, 104):
        upserts.put((key, "y", 0, key))
    del wanted[5]
    wanted |= {4: "x", 3: "back"} | dict.fromkeys(range(100, 104), "y")
    assert upserts.held() == wanted
    upserts.sink.table.compact()
    assert upserts.held() == wanted


def test_equality_deletes_of_others_are_refused_by_name(tmp_path):
    """Flink writes them, and pyiceberg reads no such table."""
    upserts = Upserts(tmp_path, "iceberg")
    upserts.put((1, "a", 0, 0))
    table = upserts.sink.table._catalog.load_table("ns.t")
    before = table.current_snapshot()
    counts = Summary(Operation.DELETE, **{"total-equality-deletes": "1"})
    made = before.model_copy(
        update={"snapshot_id": 7, "parent_snapshot_id": before.snapshot_id, "summary": counts}
        | {"sequence_number": before.sequence_number + 1}
    )
    with table.transaction() as transaction:
        named = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=7)
        transaction._apply((AddSnapshotUpdate(snapshot=made), named))
    with pytest.raises(Rejected, match="equality deletes, which are not read here"):
        upserts.put((1, "b", 0, 1))
    with pytest.raises(Rejected, match="equality deletes"):
        Upserts(tmp_path, "iceberg", name="s2")


@pytest.mark.parametrize(
    ("properties", "what"),
    [
        ({"delta.appendOnly": "true"}, "rows that stay for ever"),
        ({"delta.enableChangeDataFeed": "true"}, "a change data feed"),
        ({"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}, "mapping"),
        ({"delta.enableDeletionVectors": "true"}, "deletionVectors"),
    ],
)
def test_delta_tables_whose_rows_cannot_be_replaced_are_refused_by_name(tmp_path, properties, what):
    deltalake.DeltaTable.create(str(tmp_path / "t"), schema=SCHEMA, configuration=properties)
    with pytest.raises(Rejected, match=f"{what}.*is not upserted into"):
        open_table(Sink(delta="t", mode="upsert", key="id"), str(tmp_path)).inspect(None)


def test_places_compare_by_offset_generation_and_time():
    def places(*rows):
        kinds = [pa.string(), pa.int32(), pa.int64(), UTC_US, pa.int64()]
        schema = pa.schema(list(zip(PLACES, kinds, strict=True)))
        return Places.of(pa.Table.from_pylist([dict(zip(PLACES, row, strict=True)) for row in rows], schema))

    early, late = T0, T0 + dt.timedelta(hours=1)
    cases = [
        (("t", 0, 5, early, 0), ("t", 0, 4, late, 0), True),  # offsets count, not clocks
        (("t", 0, 5, late, 0), ("t", 0, 5, late, 0), False),
        (("t", 1, 0, early, 1), ("t", 0, 99, late, 0), True),
        (("t", 0, 99, late, 0), ("t", 1, 0, early, 1), False),
        (("t", 1, 0, late, 0), ("t", 0, 99, early, 0), True),
        (("t", 0, 9, None, 0), ("t", 1, 0, early, 0), False),
        (("u", 0, 0, late, 0), ("t", 0, 99, early, 7), True),  # another topic's generations mean nothing
        (("t", 0, 0, early, 0), (None, None, None, None, None), True),
    ]
    changes, rows = places(*(case[0] for case in cases)), places(*(case[1] for case in cases))
    assert newer(changes, rows).tolist() == [case[2] for case in cases]


@pytest.mark.parametrize(
    ("kind", "key", "what"),
    [
        (pa.float64(), ["id"], "and such are no key"),
        (pa.list_(pa.int64()), ["id"], "a key has simple columns"),
        (pa.int64(), ["id", "more"], "lacks more"),
    ],
)
def test_keys_that_are_not_compared_exactly_are_refused(kind, key, what):
    with pytest.raises(Rejected, match=what):
        require_key(SCHEMA.set(0, pa.field("id", kind)), key)


def test_a_query_that_loses_the_place_of_records_is_refused():
    with pytest.raises(Rejected, match="lacks _offset, and the query has to keep them"):
        require_key(SCHEMA.remove(SCHEMA.get_field_index("_offset")), ["id"])


def test_renamed_columns_of_an_iceberg_table_go_on_to_be_merged(tmp_path, monkeypatch):
    place = pa.struct([("city", pa.string()), ("zip", pa.int32())])
    upserts = Upserts(tmp_path, "iceberg", schema=SCHEMA.append(pa.field("at", place)))

    def row(key, name):
        return {"id": key, "name": name, "at": {"city": f"c{name}", "zip": key}}

    upserts.put((1, row(1, "a"), 0, 0), (2, row(2, "b"), 0, 1), (3, row(3, "c"), 0, 2))
    with upserts.sink.table._catalog.load_table("ns.t").update_schema() as update:
        update.rename_column("name", "called")
        update.rename_column("at.city", "town")
    with upserts.sink.table._catalog.load_table("ns.t").update_schema() as update:
        update.add_column("name", StringType())
    upserts.reopen().put((1, row(1, "d"), 0, 3), (3, None, 0, 4))
    upserts.reopen().put((4, row(4, "e"), 0, 5))

    def held():
        return sorted((row["id"], row["called"], row["name"], row["at"]["town"]) for row in upserts.table().to_pylist())

    rows = [(1, "d", None, "cd"), (2, "b", None, "cb"), (4, "e", None, "ce")]
    assert held() == rows
    monkeypatch.setattr(merging, "_SMALL_FILES", 2)
    assert upserts.sink.table.compact() > 0
    assert held() == rows
    with upserts.sink.table._catalog.load_table("ns.t").update_schema() as update:
        update.rename_column("id", "number")
    upserts.reopen().put((1, row(1, "f"), 0, 6), (2, None, 0, 7))
    found = sorted((row["number"], row["called"]) for row in upserts.table().to_pylist())
    assert found == [(1, "f"), (4, "e")]


def test_a_partition_key_that_its_owner_changes_moves_no_row_twice(tmp_path):
    upserts = Upserts(tmp_path, "iceberg")
    upserts.put((1, "a", 0, 0), (2, "b", 0, 1), (3, "c", 0, 2))
    for change in (lambda spec: spec.add_field("id", "bucket[2]", "of_id"), lambda spec: spec.add_identity("name"),
                   lambda spec: spec.remove_field("of_id")):  # fmt: skip
        with upserts.sink.table._catalog.load_table("ns.t").update_spec() as spec:
            change(spec)
        offset = max(upserts.ends.values())
        upserts.reopen().put((1, f"a{offset}", 0, offset), (2, None, 0, offset + 1), (5, f"e{offset}", 0, offset + 2))
    last = offset
    assert upserts.held() == {1: f"a{last}", 3: "c", 5: f"e{last}"}

"""The guard of a table: one run of a name writes, and a record holds only for the history that it went with."""

import datetime as dt
import json
import os
import shutil
from types import SimpleNamespace

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.dataset
import pytest
from table_support import N, Writer, ends, numbers, set_back, version_of

from millstream.errors import Rejected, Unavailable
from millstream.pipeline.model import Pipeline, Sink, Source
from millstream.pipeline.runner import Run
from millstream.pipeline.sink_query import NoWatch
from millstream.pipeline.start import (
    begin_of,
    check_checkpoint,
    find_start,
    require_pinned_topics,
    require_same_topics,
)
from millstream.pipeline.state import PipelineState, SinkState
from millstream.pipeline.tables import delta
from millstream.pipeline.tables.guard import SetBack, TakenOver, offsets_of
from millstream.pipeline.tables.table import CommitRecord
from millstream.spark.logs import SourcePartition

KINDS = ["delta", "iceberg", "parquet"]


def opened(tmp_path, kind, query="q", **options):
    writer = Writer(tmp_path, kind, query=query, **options)
    writer.sink.take()
    return writer.open(N)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_run_takes_over_and_the_older_one_ends(tmp_path, kind):
    one = opened(tmp_path, kind)
    one.append([{"n": 1}], ends(1))
    files = one.files([{"n": 2}])
    two = opened(tmp_path, kind, "another")
    assert two.sink.last.offsets == ends(1)
    with pytest.raises(TakenOver, match=rf"has taken over \(host .*, process {os.getpid()}, run .*\); this run ends"):
        one.commit(files, ends(2))
    two.append([{"n": 2}], ends(2))
    with pytest.raises(TakenOver):
        one.append([{"n": 2}], ends(2))
    assert numbers(two) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_taken_over_while_it_commits_adds_nothing(tmp_path, kind, monkeypatch):
    one = opened(tmp_path, kind)
    one.append([{"n": 1}], ends(1))
    two = []
    where = {"delta": "_add", "iceberg": "_add", "parquet": "_claims"}[kind]
    original = getattr(type(one.table), where)

    def add(self, *args):
        if self is one.table and not two:
            two.append(None)
            two[0] = opened(tmp_path, kind, "another")  # behind the check, before the commit
        return original(self, *args)

    monkeypatch.setattr(type(one.table), where, add)
    with pytest.raises(TakenOver):
        one.append([{"n": 2}], ends(2))
    two[0].append([{"n": 2}], ends(2))
    assert numbers(two[0]) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_runs_that_claim_at_once_the_later_one_writes(tmp_path, kind, monkeypatch):
    opened(tmp_path, kind).append([{"n": 1}], ends(1))
    one = Writer(tmp_path, kind, query="one")
    original = type(one.table).claim
    others = []

    def claim(self, record, after):
        if self is one.table and not others:
            others.append(None)
            others[0] = opened(tmp_path, kind, "two")
            others[0].append([{"n": 2}], ends(2))
        original(self, record, after)

    monkeypatch.setattr(type(one.table), "claim", claim)
    assert one.sink.take().offsets == ends(2), "what the other has added counts"
    one.open(N).append([{"n": 3}], ends(3))
    with pytest.raises(TakenOver):
        others[0].append([{"n": 4}], ends(4))
    assert numbers(one) == [1, 2, 3]


def test_first_runs_that_make_a_table_at_once_do_not_both_begin(tmp_path):
    one = Writer(tmp_path, "delta")
    assert one.sink.take() is None
    opened(tmp_path, "delta", "two").append([{"n": 1}], ends(1))
    with pytest.raises(Unavailable, match="another run of this pipeline started at the same time"):
        one.open(N)


def set_back_in_time(writer, version):
    """``RESTORE TABLE … TO TIMESTAMP``: the commits are a second apart."""
    for path in (writer.directory / "t/_delta_log").glob("*.json"):
        os.utime(path, (int(path.stem), int(path.stem)))
    writer.delta().restore(dt.datetime.fromtimestamp(version, dt.UTC))


SET_BACK = [("delta", set_back), ("delta", set_back_in_time), ("iceberg", set_back)]


@pytest.mark.parametrize(("kind", "set_back"), SET_BACK)
def test_a_table_that_was_set_back_is_refused_and_sent_the_gap_where_it_is_told_to(tmp_path, kind, set_back):
    one = opened(tmp_path, kind)
    one.append([{"n": 1}], ends(1))
    first = version_of(one)
    one.append([{"n": 2}], ends(2))
    files = one.files([{"n": 3}])
    set_back(one, first)
    text = r"has written up to batch 1 \(t-0: 2\), and the table holds rows up to batch 0 \(t-0: 1\)\..* --replay"
    with pytest.raises(SetBack, match=text):
        one.commit(files, ends(3))
    deltas = Writer(tmp_path, kind, name="other").open(N)
    deltas.append([{"n": 9}])  # what others add behind it changes nothing
    with pytest.raises(Rejected, match=text):
        opened(tmp_path, kind, "two")
    again = opened(tmp_path, kind, "three", replay=True)
    assert offsets_of(again.sink.last) == {"t": {"0": 1}}
    assert again.sink.lost.offsets == ends(2)
    again.append([{"n": 2}], ends(2))
    opened(tmp_path, kind, "four").append([{"n": 3}], ends(3))
    assert numbers(again) == [1, 2, 3, 9]


def test_a_delta_table_that_is_set_back_while_a_batch_is_committed_does_not_get_it(tmp_path, monkeypatch):
    one = opened(tmp_path, "delta")
    one.append([{"n": 1}], ends(1))
    first, properties = version_of(one), one.table._properties
    one.append([{"n": 2}], ends(2))

    def meanwhile(*given):
        monkeypatch.undo()
        set_back(one, first)
        return properties(*given)

    monkeypatch.setattr(one.table, "_properties", meanwhile)
    with pytest.raises(SetBack):
        one.append([{"n": 3}], ends(3))
    again = opened(tmp_path, "delta", "two", replay=True)
    again.append([{"n": 2}, {"n": 3}], ends(3))
    assert numbers(again) == [1, 2, 3]


def pick(writer, snapshot):
    """Bring the rows of a snapshot back, as Iceberg's Java library does it ("cherry-pick")."""
    table = writer.iceberg()
    entries = [
        entry
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.snapshot_id == snapshot.snapshot_id
    ]
    with table.transaction() as transaction:
        named = {"source-snapshot-id": str(snapshot.snapshot_id)}
        with transaction.update_snapshot(snapshot_properties=named).fast_append() as append:
            for entry in entries:
                append.append_data_file(entry.data_file)


def test_a_batch_that_was_picked_into_a_table_that_was_set_back_is_in_it(tmp_path):
    one = opened(tmp_path, "iceberg")
    one.append([{"n": 1}], ends(1))
    first = version_of(one)
    one.append([{"n": 2}], ends(2))
    second = one.iceberg().current_snapshot()
    one.append([{"n": 3}], ends(3))
    set_back(one, first)
    pick(one, second)
    with pytest.raises(Rejected, match=r"up to batch 2 \(t-0: 3\), and the table holds rows up to batch 1 \(t-0: 2\)"):
        opened(tmp_path, "iceberg", "two")
    again = opened(tmp_path, "iceberg", "three", replay=True)
    again.append([{"n": 3}], ends(3))
    third = again.iceberg().current_snapshot()
    set_back(again, third.parent_snapshot_id)
    Writer(tmp_path, "iceberg", name="other").open(N).append([{"n": 9}])
    pick(again, third)
    again.append([{"n": 4}], ends(4))
    opened(tmp_path, "iceberg", "four").append([{"n": 5}], ends(5))
    assert numbers(again) == [1, 2, 3, 4, 5, 9]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_of_which_an_older_copy_comes_back_is_refused(tmp_path, kind):
    one = opened(tmp_path, kind)
    one.append([{"n": 1}], ends(1))
    place = tmp_path / ("t" if kind == "delta" else ".millstream/iceberg/catalog.db")
    copy = shutil.copytree if kind == "delta" else shutil.copy
    copy(place, tmp_path / "copy")
    one.append([{"n": 2}], ends(2))
    if kind == "delta":
        shutil.rmtree(place)
    copy(tmp_path / "copy", place)
    files = one.files([{"n": 3}])
    with pytest.raises(SetBack, match=r"up to batch 1 \(t-0: 2\), and the table holds rows up to batch 0 \(t-0: 1\)"):
        one.commit(files, ends(3))
    again = opened(tmp_path, kind, "two")  # the record went back with the table, so nothing is missing
    again.append([{"n": 2}], ends(2))
    assert numbers(again) == [1, 2]


@pytest.mark.parametrize(("kind", "set_back"), SET_BACK)
def test_a_table_that_is_set_back_to_a_version_with_the_last_batch_goes_on(tmp_path, kind, set_back):
    one = opened(tmp_path, kind)
    one.append([{"n": 1}], ends(1))
    last = version_of(one)
    Writer(tmp_path, kind, name="other").open(N).append([{"n": 9}])
    set_back(one, last)
    one.append([{"n": 2}], ends(2))
    opened(tmp_path, kind, "two").append([{"n": 3}], ends(3))
    assert numbers(one) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_that_is_set_back_behind_a_claim_alone_goes_on(tmp_path, kind):
    one = opened(tmp_path, kind)
    one.append([{"n": 1}], ends(1))
    last = version_of(one)
    two = opened(tmp_path, kind, "two")
    set_back(two, last)
    two.append([{"n": 2}], ends(2))
    with pytest.raises(TakenOver):
        one.append([{"n": 2}], ends(2))
    opened(tmp_path, kind, "three").append([{"n": 3}], ends(3))
    assert numbers(one) == [1, 2, 3]


def test_a_delta_table_that_was_set_back_and_forth_stands(tmp_path):
    one = opened(tmp_path, "delta")
    one.append([{"n": 1}], ends(1))
    one.append([{"n": 2}], ends(2))
    last = version_of(one)
    set_back(one, 0)
    set_back(one, last)
    opened(tmp_path, "delta", "two").append([{"n": 3}], ends(3))
    assert numbers(one) == [1, 2, 3]


def test_neither_commits_of_others_nor_a_clean_log_hide_the_record_of_a_delta_table(tmp_path):
    one = opened(tmp_path, "delta")
    one.append([{"n": 1}], ends(1))
    others = deltalake.DeltaTable(str(tmp_path / "t"))
    for _ in range(3):
        deltalake.write_deltalake(others, pa.table({"n": pa.array([7], pa.int64())}), mode="append")
    others.optimize.compact()
    others.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    others.create_checkpoint()
    log = tmp_path / "t" / "_delta_log"
    for file in log.glob("*.json"):
        if int(file.stem) < others.version():
            file.unlink()
    two = opened(tmp_path, "delta", "two")
    assert two.sink.last.offsets == ends(1)
    two.append([{"n": 2}], ends(2))
    assert numbers(two) == [1, 2, 7, 7, 7]


def test_expired_snapshots_do_not_hide_the_record_of_an_iceberg_table(tmp_path):
    one = opened(tmp_path, "iceberg")
    one.append([{"n": 1}], ends(1))
    Writer(tmp_path, "iceberg", name="other").open(N).append([{"n": 7}])
    assert one.table.expire(0) > 0
    two = opened(tmp_path, "iceberg", "two")
    two.append([{"n": 2}], ends(2))
    assert numbers(two) == [1, 2, 7]


def test_a_delta_table_that_was_copied_without_its_records_has_them_in_its_log(tmp_path):
    one = opened(tmp_path, "delta")
    one.append([{"n": 1}], ends(1))
    shutil.rmtree(tmp_path / "t" / "_millstream")
    two = opened(tmp_path, "delta", "two")
    assert two.sink.last.offsets == ends(1)
    two.append([{"n": 2}], ends(2))
    assert numbers(two) == [1, 2]
    two.delta().create_checkpoint()
    shutil.rmtree(tmp_path / "t" / "_millstream")
    for path in sorted((tmp_path / "t" / "_delta_log").glob("0*.json"))[:-1]:
        path.unlink()
    for path in (tmp_path / "t" / "_delta_log").glob("0*.json"):
        path.write_text('{"commitInfo":{}}')
    with pytest.raises(Rejected, match="was it copied or cleaned without that directory"):
        opened(tmp_path, "delta", "two")


def test_a_delta_table_may_be_set_back_behind_its_oldest_record_that_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(delta, "_KEPT_RECORDS", 2)
    monkeypatch.setattr(delta, "_PRUNE_EVERY", 1)
    one = opened(tmp_path, "delta")
    one.append([{"n": 1}], ends(1))
    first = version_of(one)
    for number in range(2, 7):
        one.append([{"n": number}], ends(number))
    set_back(one, first)
    with pytest.raises(Rejected, match=r"up to batch 5 \(t-0: 6\), and the table holds rows up to batch 0 \(t-0: 1\)"):
        opened(tmp_path, "delta", "two")
    assert offsets_of(opened(tmp_path, "delta", "two", replay=True).sink.last) == {"t": {"0": 1}}


@pytest.mark.parametrize("lost", ["snapshots", "snapshots and metadata"])
def test_an_iceberg_table_that_was_set_back_and_cleaned_is_refused(tmp_path, lost):
    one = opened(tmp_path, "iceberg")
    one.append([{"n": 1}], ends(1))
    first = version_of(one)
    one.append([{"n": 2}], ends(2))
    set_back(one, first)
    for number in (8, 9):
        Writer(tmp_path, "iceberg", query=f"q{number}", name="other").open(N).append([{"n": number}])
    table = one.iceberg()
    old = [each.snapshot_id for each in table.snapshots() if each != table.current_snapshot()]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    if lost == "snapshots":
        with pytest.raises(Rejected, match=r"the table holds rows up to batch 0 \(t-0: 1\)"):
            opened(tmp_path, "iceberg", "two")
        again = opened(tmp_path, "iceberg", "two", replay=True)
        again.append([{"n": 2}], ends(2))
        assert numbers(again) == [1, 2, 8, 9]
    else:  # nothing tells it any longer from a table whose snapshots were expired
        for entry in one.iceberg().metadata.metadata_log:
            os.unlink(entry.metadata_file.removeprefix("file://"))
        assert opened(tmp_path, "iceberg", "two").sink.last.offsets == ends(2)


@pytest.mark.parametrize("cleaned", ["between runs", "under a run"])
def test_a_parquet_directory_whose_staging_was_cleaned_goes_on_with_the_next_run(tmp_path, cleaned):
    one = opened(tmp_path, "parquet")
    one.append([{"n": 1}], ends(1))
    shutil.rmtree(tmp_path / "t" / "_millstream_staging")
    if cleaned == "under a run":
        one.table.location.make()
        with pytest.raises(Rejected, match="another program has removed _millstream_staging while this run writes"):
            one.append([{"n": 2}], ends(2))
    two = opened(tmp_path, "parquet", "two")
    assert (two.sink.last.offsets, two.sink.last.epoch) == (ends(1), 2)
    with pytest.raises(TakenOver):
        one.append([{"n": 2}], ends(2))
    two.append([{"n": 2}], ends(2))
    assert numbers(two) == [1, 2]


@pytest.mark.parametrize("log", ["_delta_log", "_spark_metadata"])
def test_a_parquet_directory_that_became_a_table_of_another_kind_is_refused(tmp_path, log):
    opened(tmp_path, "parquet").append([{"n": 1}], ends(1))
    os.mkdir(tmp_path / "t" / log)
    with pytest.raises(Rejected, match=rf"has become .*{log}"):
        opened(tmp_path, "parquet", "two")


def test_a_damaged_record_of_a_delta_table_is_named(tmp_path):
    opened(tmp_path, "delta").append([{"n": 1}], ends(1))
    newest = max((tmp_path / "t" / "_millstream" / "p.s").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:20])
    with pytest.raises(Rejected, match=rf"the record _millstream/p\.s/{newest.name} is damaged"):
        opened(tmp_path, "delta", "two")


def test_a_damaged_record_of_an_iceberg_table_is_named_and_properties_of_others_are_left_alone(tmp_path):
    opened(tmp_path, "iceberg").append([{"n": 1}], ends(1))
    with Writer(tmp_path, "iceberg").iceberg().transaction() as transaction:
        transaction.set_properties({"millstream.team": "ours", "millstream.p.s": "{}"})
    Writer(tmp_path, "iceberg").table.inspect(N)
    with pytest.raises(Rejected, match=r"the property millstream\.p\.s of the table is damaged"):
        Writer(tmp_path, "iceberg").sink.take()
    with Writer(tmp_path, "iceberg").iceberg().transaction() as transaction:
        transaction.remove_properties("millstream.p.s")
    two = opened(tmp_path, "iceberg", "two")
    assert two.sink.last.offsets == ends(1)


def test_a_claim_of_a_parquet_directory_that_was_cut_off_keeps_no_run_out(tmp_path):
    os.makedirs(tmp_path / "t" / "_millstream_staging" / "p.s" / "1")
    os.makedirs(tmp_path / "t" / "_millstream_staging" / "p.s" / "new-1")
    one = opened(tmp_path, "parquet")
    one.append([{"n": 1}], ends(1))
    two = opened(tmp_path, "parquet", "two")
    with pytest.raises(TakenOver):
        one.append([{"n": 2}], ends(2))
    two.append([{"n": 2}], ends(2))
    assert numbers(two) == [1, 2]


def test_a_property_that_was_removed_hides_no_record_of_an_iceberg_table(tmp_path):
    one = opened(tmp_path, "iceberg")
    one.append([{"n": 1}], ends(1))
    with one.iceberg().transaction() as transaction:
        transaction.remove_properties("millstream.p.s")
    one.append([{"n": 2}], ends(2))
    with one.iceberg().transaction() as transaction:
        transaction.remove_properties("millstream.p.s")
    two = opened(tmp_path, "iceberg", "two")
    assert offsets_of(two.sink.last) == {"t": {"0": 2}}
    two.append([{"n": 3}], ends(3))
    with pytest.raises(TakenOver):
        one.append([{"n": 3}], ends(3))
    assert numbers(two) == [1, 2, 3]


def test_records_of_earlier_releases_count(tmp_path):
    record = CommitRecord(
        pipeline="p", sink="s", query="q", batch=3, offsets=ends(4), rows=1, rejected=0, bytes=1,
        total_rows=4, total_rejected=0, total_bytes=4,
    )  # fmt: skip
    text = msgspec.json.encode(record).decode()
    table = deltalake.DeltaTable.create(str(tmp_path / "t"), schema=N)
    properties = deltalake.CommitProperties(
        custom_metadata={"millstream.record": text}, app_transactions=[deltalake.Transaction("millstream.p.s.q", 3)]
    )
    table.create_write_transaction([], "append", N, commit_properties=properties)
    Writer(tmp_path, "iceberg").open(N)
    catalog = Writer(tmp_path, "iceberg").table._catalog
    with catalog.load_table("ns.t").transaction() as transaction:
        transaction.set_properties({"millstream.p.s": text})
    for kind in ("delta", "iceberg"):
        writer = opened(tmp_path, kind, "two")
        assert (writer.sink.last.batch, writer.sink.last.total_rows, writer.sink.last.epoch) == (3, 4, 1)
        writer.append([{"n": 1}], ends(5))


@pytest.fixture
def state(tmp_path):
    state = SinkState(str(tmp_path / "state"))
    os.makedirs(os.path.join(state.checkpoint, "commits"))
    os.makedirs(os.path.join(state.checkpoint, "offsets"))
    return state


def checkpoint(state, query, *offsets):
    with open(os.path.join(state.checkpoint, "metadata"), "w") as file:
        file.write(f'{{"id": "{query}"}}')
    for number, offset in enumerate(offsets):
        with open(os.path.join(state.checkpoint, "offsets", str(number)), "w") as file:
            file.write(f"v1\n{{}}\n{ends(offset)}")
        with open(os.path.join(state.checkpoint, "commits", str(number)), "w") as file:
            file.write("v1\n{}")


def last_of(tmp_path, query, *offsets):
    writer = opened(tmp_path, "delta", query)
    for offset in offsets:
        writer.append([{"n": offset}], ends(offset))
    return writer.table.last("p.s")


def test_a_checkpoint_counts_only_if_the_table_s_last_batch_is_its_own(tmp_path, state):
    checkpoint(state, "q", 1, 2)
    assert check_checkpoint(state, last_of(tmp_path, "q", 1, 2), "t")
    another = last_of(tmp_path, "another", 3)
    assert not check_checkpoint(state, another, "t"), "another run has gone on"
    for last in (None, msgspec.structs.replace(another, offsets=ends(1))):
        with pytest.raises(Rejected, match="made again or set back"):
            check_checkpoint(state, last, "t")
        assert not check_checkpoint(state, last, "t", replay=True)


@pytest.mark.parametrize(("kept", "is_its"), [((), False), ((1,), False), ((1, 2), True), ((1, 3), False)])
def test_a_checkpoint_of_an_earlier_day_does_not_count(tmp_path, state, kept, is_its):
    """The table has two batches. Spark would number a batch of other records as the second one."""
    checkpoint(state, "q", *kept)
    shutil.rmtree(os.path.join(state.checkpoint, "commits"))
    assert check_checkpoint(state, last_of(tmp_path, "q", 1, 2), "t") is is_its


def test_a_checkpoint_that_begins_where_the_table_s_record_ends_counts(tmp_path, state):
    checkpoint(state, "new")
    state.pin_start({"t": {"0": 2, "1": 0}}, {})
    assert check_checkpoint(state, last_of(tmp_path, "old", 2), "t")
    assert not check_checkpoint(state, last_of(tmp_path, "other", 5), "t")


class OneTopic:
    """The topic ``t`` of one partition, as the cluster has it now."""

    def __init__(self, topic_id="1" * 32, cluster_id="c"):
        self.topic_id = topic_id
        self.cluster = SimpleNamespace(metadata=lambda _: SimpleNamespace(cluster_id=cluster_id))

    def source_partitions(self):
        return [SourcePartition("t", self.topic_id, 0, 0)]


OTHERS = pytest.mark.parametrize(
    ("now", "text"),
    [
        (OneTopic("2" * 32), "topic t was deleted and made again"),
        (OneTopic(cluster_id="d"), "topic t was read from cluster c, and this is cluster d"),
    ],
)


@OTHERS
@pytest.mark.parametrize("kept", [True, False])
def test_a_topic_that_is_another_one_is_refused_and_read_from_its_beginning_where_it_is_told_to(
    tmp_path, state, now, text, kept
):
    pipeline = Pipeline(pipeline="p", source=Source(topic="t"), sinks=[Sink(delta="t")])
    last = msgspec.structs.replace(last_of(tmp_path, "q", 100), cluster="c")
    if kept:
        checkpoint(state, "q", 100)
        state.pin_start({"t": {"0": 0}}, {})
    assert find_start(pipeline, state, last, OneTopic()) == {"t": {"0": 0 if kept else 100}}
    with pytest.raises(Rejected, match=text):
        find_start(pipeline, state, last, now)
    assert find_start(pipeline, state, last, now, replay=True) == {"t": {"0": -2}}
    assert state.query_id() is None


def test_the_history_of_a_topic_that_was_made_again_is_not_read_into_its_table(tmp_path):
    last = last_of(tmp_path, "q", 100)
    require_same_topics(last, OneTopic())
    with pytest.raises(Rejected, match="what the pipeline left out is no longer there"):
        require_same_topics(last, OneTopic("2" * 32))


@pytest.mark.parametrize("started", [True, False])
def test_a_start_that_was_pinned_before_the_first_batch_is_of_that_topic_alone(state, started):
    pipeline = Pipeline(pipeline="p", source=Source(topic="t", start="latest"), sinks=[Sink(delta="t")])
    state.pin_start({"t": {"0": 100}}, {"t": "1" * 32})
    if started:
        checkpoint(state, "q")
    again = OneTopic("2" * 32)
    assert find_start(pipeline, state, None, OneTopic()) == {"t": {"0": 100}}
    with pytest.raises(Rejected, match="state: topic t was deleted and made again"):
        find_start(pipeline, state, None, again)
    with pytest.raises(Rejected, match="what the pipeline left out is no longer there"):
        require_pinned_topics(state, again)
    assert find_start(pipeline, state, None, again, replay=True) == {"t": {"0": -2}}
    assert find_start(pipeline, state, None, again) == {"t": {"0": -2}}, "it is the topic of the pinned start now"


def test_after_its_first_batch_the_log_of_a_query_knows_its_topics(state):
    pipeline = Pipeline(pipeline="p", source=Source(topic="t"), sinks=[Sink(topic="out")])
    state.pin_start({"t": {"0": 100}}, {"t": "1" * 32})
    checkpoint(state, "q", 100)
    assert find_start(pipeline, state, None, OneTopic("2" * 32)) == {"t": {"0": 100}}


def test_a_start_of_an_earlier_release_counts(state):
    with open(os.path.join(state.directory, "start.json"), "w") as file:
        json.dump({"offsets": {"0": 1}, "topics": {"0": 2}}, file)  # the names of two topics
    assert state.start() == {"offsets": {"0": 1}, "topics": {"0": 2}}
    assert state.start_topics() == {}


def test_where_a_sink_began_is_said_anew_of_a_topic_that_was_made_again(tmp_path):
    """Otherwise a backfill up to there would read records that the pipeline has read itself."""
    last = msgspec.structs.replace(last_of(tmp_path, "q", 100), begin='{"t": {"0": 50}, "u": {"0": 7}}')
    assert json.loads(begin_of(None, {"t": {"0": 3}}, OneTopic())) == {"t": {"0": 3}}
    assert json.loads(begin_of(last, {"t": {"0": 0}}, OneTopic())) == {"t": {"0": 50}, "u": {"0": 7}}
    assert json.loads(begin_of(last, {"t": {"0": 0}}, OneTopic("2" * 32))) == {"t": {"0": 0}, "u": {"0": 7}}
    assert begin_of(msgspec.structs.replace(last, begin=""), {"t": {"0": 0}}, OneTopic("2" * 32)) == ""


@OTHERS
def test_a_run_that_is_refused_takes_the_table_from_no_other(tmp_path, now, text):
    one = opened(tmp_path, "delta")
    one.sink.reads.cluster = "c"
    one.append([{"n": 1}], ends(100))
    pipeline = Pipeline(pipeline="p", source=Source(topic="t"), sinks=[Sink(delta="t", name="s")])
    elsewhere = Run(pipeline, str(tmp_path), PipelineState(str(tmp_path / "elsewhere")), NoWatch())
    elsewhere._inspect_records(OneTopic())
    with pytest.raises(Rejected, match=text):
        elsewhere._inspect_records(now)
    one.append([{"n": 2}], ends(200))
    assert numbers(one) == [1, 2]

"""Tables of a pipeline in Apache Iceberg's own REST catalog server: guard, set-back tables, columns, upkeep, keys."""

import json
import logging

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")

from conformance.iceberg_rest import IcebergRestServer
from tests.unit.pipeline.table_support import Writer
from tests.unit.pipeline.upsert_support import Upserts

from millstream.errors import Rejected
from millstream.pipeline.tables import iceberg
from millstream.pipeline.tables.guard import SetBack, TakenOver

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]

N = pa.schema([("n", pa.int64())])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with IcebergRestServer(tmp_path_factory.mktemp("rest") / "catalog") as served:
        yield served


class Tables:
    """Writers of one table of the server."""

    def __init__(self, server, place, name):
        self.place, self.name = place, name
        self.catalog = {"type": "rest", "uri": server.url}

    def writer(self, query="q", schema=N, number=0, **options):
        made = Writer(self.place, "iceberg", query=query, target=self.name, catalog=self.catalog, **options)
        made.number = number
        made.sink.take()
        return made.open(schema)

    def table(self):
        return iceberg.open_catalog(self.catalog, str(self.place)).load_table(self.name)

    def rows(self):
        return self.table().scan().to_arrow().sort_by("n").to_pylist()

    def numbers(self):
        return [row["n"] for row in self.rows()]


@pytest.fixture
def tables(server, tmp_path, request):
    return Tables(server, tmp_path, f"{request.function.__name__[:40]}.t")


def ends(offset):
    """Where a batch ends, as in Spark's log."""
    return json.dumps({"bundles": 0, "topics": {"1" * 32: {"n": "t", "p": {"0": [offset, 0, 1]}}}, "v": 1})


def test_of_two_runs_the_older_one_ends(tables):
    one = tables.writer()
    one.append([{"n": 1}], ends(1))
    files = one.files([{"n": 2}])
    two = tables.writer("another")
    assert two.sink.last.offsets == ends(1)
    with pytest.raises(TakenOver, match="has taken over"):
        one.commit(files, ends(2))
    two.append([{"n": 2}], ends(2))
    assert tables.numbers() == [1, 2]


def test_a_batch_that_is_committed_again_adds_nothing(tables):
    one = tables.writer()
    files = one.files([{"n": 1}])
    one.commit(files, ends(1))
    one.number = 0
    assert one.commit(files, ends(1)).repeated
    assert tables.numbers() == [1]


def test_a_table_that_its_owner_set_back_is_refused_and_sent_the_gap_where_it_is_told_to(tables):
    one = tables.writer()
    one.append([{"n": 1}], ends(1))
    before = tables.table().current_snapshot().snapshot_id
    one.append([{"n": 2}], ends(2))
    with tables.table().manage_snapshots() as owner:
        owner.set_current_snapshot(before)
    with pytest.raises(SetBack):
        one.append([{"n": 3}], ends(3))
    with pytest.raises(Rejected, match="was set back"):
        tables.writer("another")
    again = tables.writer("another", replay=True)
    assert again.sink.last.offsets == ends(1)
    again.append([{"n": 2}], ends(2))
    assert tables.numbers() == [1, 2]


def test_columns_are_added_and_a_renamed_one_is_still_filled(tables):
    tables.writer().append([{"n": 1}], ends(1))
    wider = pa.schema([("n", pa.int64()), ("who", pa.string())])
    tables.writer(schema=wider, number=1).append([{"n": 2, "who": "b"}], ends(2))
    with tables.table().update_schema() as owner:
        owner.rename_column("who", "name")
    tables.writer(schema=wider, number=2).append([{"n": 3, "who": "c"}], ends(3))
    assert tables.rows() == [{"n": 1, "name": None}, {"n": 2, "name": "b"}, {"n": 3, "name": "c"}]


def test_upkeep_keeps_every_row_and_says_nothing_of_metadata_that_the_server_removes(tables, caplog):
    with caplog.at_level(logging.WARNING):
        one = tables.writer()
        for number in range(40):
            one.append([{"n": number}], ends(number + 1))
        assert one.table.compact() > 0
        assert one.table.expire(0) > 0
        one.append([{"n": 40}], ends(41))
    assert tables.numbers() == list(range(41))
    assert [record.getMessage() for record in caplog.records if "metadata" in record.getMessage()] == []


def test_a_table_with_keys_has_the_latest_record_of_each_and_a_merge_that_lost_a_race_is_done_again(server, tmp_path):
    catalog = {"type": "rest", "uri": server.url}
    one = Upserts(tmp_path, "iceberg", catalog=catalog)
    one.put((1, "a", 0, 0), (2, "b", 0, 1), (3, "c", 1, 0))
    one.put((1, None, 0, 2), (2, "B", 0, 3))
    assert one.held() == {2: "B", 3: "c"}
    raced = one.batch([(3, "C", 1, 1), (4, "d", 1, 2)])
    merge = one.sink.table.merge
    attempts = []

    def after_another(record, changes, guard):
        def changed():
            if not attempts:
                Upserts(tmp_path, "iceberg", catalog=catalog, name="other").put((9, "z", 2, 0))
            attempts.append(1)
            return changes()

        return merge(record, changed, guard)

    one.sink.table.merge = after_another
    one.sink.commit(raced)
    assert len(attempts) == 2, "the other pipeline's commit refuses the first attempt"
    assert one.held() == {2: "B", 3: "C", 4: "d", 9: "z"}
    again = Upserts(tmp_path, "iceberg", catalog=catalog)
    again.number, again.ends = one.number, dict(one.ends)
    again.put((1, "older", 0, 0), (2, "older", 0, 0))
    assert again.held() == {2: "B", 3: "C", 4: "d", 9: "z"}, "an older record never wins"

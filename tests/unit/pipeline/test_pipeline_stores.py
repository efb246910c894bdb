"""Tables in object stores: written, guarded and maintained as on a disk, and refused where a store cannot keep that."""

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from table_support import Writer
from tests import buckets

from millstream.errors import Rejected
from millstream.pipeline.locations import Location, store_options
from millstream.pipeline.model import Sink
from millstream.pipeline.tables import iceberg, merging
from millstream.pipeline.tables.guard import TakenOver
from millstream.pipeline.tables.iceberg import open_catalog
from millstream.pipeline.tables.open_table import open_table

N = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.fixture(scope="module")
def server():
    with buckets.moto() as url:
        yield url


@pytest.fixture
def s3(server, monkeypatch, tmp_path):
    for name, value in buckets.environment(server, tmp_path).items():
        monkeypatch.setenv(name, value)
    return f"s3://lake/{tmp_path.name}"


def opened(address, tmp_path, **options):
    writer = Writer(tmp_path, "delta", target=f"{address}/t", **options)
    writer.sink.take()
    return writer.open(N)


def numbers(address):
    location = Location(f"{address}/t")
    table = deltalake.DeltaTable(location.address, storage_options=store_options(location))
    return sorted(table.to_pyarrow_dataset().to_table().column("n").to_pylist())


def test_a_delta_table_in_s3_has_each_batch_once_and_one_run_that_writes(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "_SMALL_FILES", 5)
    one = opened(s3, tmp_path)
    one.append([{"n": 1, "text": "a" * 3_000_000}])
    files = one.files([{"n": 2, "text": "b"}])
    two = opened(s3, tmp_path, query="another")
    with pytest.raises(TakenOver, match="has taken over"):
        one.commit(files)
    two.append([{"n": 2, "text": "b"}])
    for number in range(3, 8):
        two.append([{"n": number, "text": ""}])
    assert numbers(s3) == list(range(1, 8))
    assert two.table.compact() > 0
    assert two.table.expire(7) == 0
    assert two.table.expire(0) == 7
    assert numbers(s3) == list(range(1, 8))
    assert opened(s3, tmp_path, query="third").sink.last.batch == 5


def test_a_run_that_is_taken_over_while_it_commits_to_s3_adds_nothing(s3, tmp_path, monkeypatch):
    one = opened(s3, tmp_path)
    one.append([{"n": 1, "text": "a"}])
    original, others = type(one.table)._add, []

    def add(self, *args):
        if self is one.table and not others:
            others.append(None)
            others[0] = opened(s3, tmp_path, query="another")  # behind the check, before the commit
        return original(self, *args)

    monkeypatch.setattr(type(one.table), "_add", add)
    with pytest.raises(TakenOver):
        one.append([{"n": 2, "text": "b"}])
    others[0].append([{"n": 2, "text": "b"}])
    assert numbers(s3) == [1, 2]


def test_keys_come_from_the_profile_of_the_shared_files(s3, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[lake]\naws_access_key_id = k\naws_secret_access_key = s\n")
    (tmp_path / ".aws" / "config").write_text("[profile lake]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_PROFILE", "lake")
    one = opened(s3, tmp_path)
    one.append([{"n": 1, "text": "a"}])
    (tmp_path / ".aws" / "credentials").write_text("[lake]\naws_access_key_id = new\naws_secret_access_key = s\n")
    one.append([{"n": 2, "text": "a"}])
    assert one.table._storage["aws_access_key_id"] == "new", "keys are renewed in the file"
    assert numbers(s3) == [1, 2]


def test_an_iceberg_table_has_its_files_in_s3_and_its_commits_in_the_catalog(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(iceberg, "_SMALL_FILES", 5)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{s3}/warehouse"}
    one = Writer(tmp_path, "iceberg", catalog=catalog)
    one.sink.take()
    one.open(N)
    for number in range(6):
        one.append([{"n": number, "text": "a"}])
    assert one.table.compact() > 0
    table = load_catalog("millstream", **catalog, **{"s3.endpoint": store_options(Location(s3))["aws_endpoint"]})
    rows = table.load_table("ns.t").scan().to_arrow()
    assert sorted(rows.column("n").to_pylist()) == list(range(6))
    assert one.table.location.address.startswith(s3)


def test_a_store_that_ignores_conditions_is_refused_before_a_table_is_made(s3, server, tmp_path, monkeypatch):
    with buckets.without_conditions(server) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(Rejected, match=r"writes over an object although that is forbidden .* or an Iceberg table"):
            opened(f"{s3}/other", tmp_path)
        assert not open_table(Sink(delta=f"{s3}/other/t"), str(tmp_path)).exists()
        assert list(Location(f"{s3}/other").store.list()) == []


def test_files_are_read_at_any_place(s3):
    place = Location(s3)
    stream = place.create("f")
    content = bytes(range(256)) * 10_000
    stream.write(content)
    assert not place.has("f")
    stream.close()
    with place.open_file("f") as file:
        file.seek(-100, 2)
        assert file.read() == content[-100:]
        file.seek(5)
        assert file.read(7) == content[5:12]
        assert (file.tell(), file.seek(0)) == (12, 0)
        assert file.read() == content
    for missing in (place.read, place.open_file):
        with pytest.raises(FileNotFoundError):
            missing("g")


@pytest.mark.slow
def test_a_delta_table_in_azure_has_each_batch_once(tmp_path, monkeypatch):
    with buckets.azurite() as url:
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", url)
        address = f"az://lake/{tmp_path.name}"
        one = opened(address, tmp_path)
        one.append([{"n": 1, "text": "a"}])
        files = one.files([{"n": 2, "text": "b"}])
        two = opened(address, tmp_path, query="another")
        with pytest.raises(TakenOver, match="has taken over"):
            one.commit(files)
        two.append([{"n": 2, "text": "b"}])
        assert numbers(address) == [1, 2]


def test_what_is_not_supported_is_named(tmp_path):
    with pytest.raises(Rejected, match="plain Parquet needs a rename that is atomic"):
        open_table(Sink(parquet="s3://lake/t"), str(tmp_path))
    with pytest.raises(Rejected, match="not at hdfs://"):
        open_table(Sink(delta="hdfs://name/t"), str(tmp_path)).location.store.list()


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        ({"type": "hive", "uri": "thrift://host:9083"}, "hive"),
        ({"uri": "thrift://host:9083"}, "thrift"),
        ({"type": "glue"}, "glue"),
        ({"type": "sql", "uri": "postgresql+psycopg2://host/db"}, "sql at postgresql"),
        ({"py-catalog-impl": "some.Catalog"}, "some.Catalog"),
        ({}, "without a type"),
    ],
)
def test_other_catalogs_are_refused_by_name(tmp_path, declared, name):
    with pytest.raises(Rejected, match=f"catalog: {name}.* is not supported; supported are type: rest"):
        open_catalog(declared, str(tmp_path))


def test_iceberg_files_elsewhere_are_refused(tmp_path):
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    made = load_catalog("millstream", **catalog)
    made.create_namespace("ns")
    made.create_table("ns.t", N, properties={"write.data.path": "gs://lake/data"})
    with pytest.raises(Rejected, match="has its files at gs://lake/data, and files of Iceberg are written to disks"):
        Writer(tmp_path, "iceberg", catalog=catalog).open(N)

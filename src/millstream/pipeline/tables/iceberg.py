"""Iceberg tables through ``pyiceberg``, without a JVM.

The record of the last batch is a property of the table, set in the transaction that adds the batch's files. It is
atomic with the snapshot and outlives the snapshot's expiry. There is one property for each writer, and it names the
query, because batch numbers of another checkpoint mean something else.

pyiceberg repeats a refused commit by itself and rebases it, which would let two drivers add the same batch. That is
switched off for commits of batches: a refused one comes back as an error, and the caller looks the batch up first.
"""

import os
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import Rejected, Unavailable
from millstream.pipeline.extra import need_extra
from millstream.pipeline.files import FileWriter, WrittenFile, conform
from millstream.pipeline.locations import Location, absolute
from millstream.pipeline.tables.table import CommitRecord, RecordOffsets, incompatible

_SMALL_BYTES: Final = 32 << 20
_SMALL_FILES: Final = 32
_GROUP_BYTES: Final = 256 << 20


def open_catalog(declared: Mapping[str, str] | None, directory: str) -> Any:
    """The declared catalog, or the embedded one: SQLite and a warehouse directory beside the pipeline's file.

    Raises:
        Rejected: pyiceberg does not take the declared properties.
        Unavailable: the catalog does not answer, or pyiceberg is not installed.
    """
    need_extra("pyiceberg", "Iceberg tables")
    from pyiceberg.catalog import load_catalog

    if declared is None:
        location = absolute(".millstream/iceberg", directory)
        os.makedirs(location, exist_ok=True)
        declared = {
            "type": "sql",
            "uri": f"sqlite:///{location}/catalog.db",
            "warehouse": f"file://{location}/warehouse",
        }
    named = dict(declared)
    try:
        return load_catalog(named.pop("name", "millstream"), **named)
    except OSError as error:  # a REST catalog is asked for its configuration
        reason = str(getattr(error.args[0] if error.args else error, "reason", error)).rpartition(": ")[2]
        raise Unavailable(
            f"the Iceberg catalog at {declared.get('uri')} does not answer ({reason}); start it, or correct catalog:"
        ) from error
    except (ValueError, ImportError) as error:
        raise Rejected(f"catalog: pyiceberg does not take these properties: {error}") from error


class IcebergTable:
    """An Iceberg table of a catalog; ``name`` is ``namespace.table``. Unpartitioned tables only."""

    def __init__(self, catalog: Any, name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._table: Any = None
        self._schema: Any = None

    @property
    def location(self) -> Location:
        return Location(_path(self._fresh().location())) / "data"

    def exists(self) -> bool:
        return bool(self._catalog.table_exists(self._name))

    def prepare(self, schema: Any) -> Any:
        if not self._catalog.table_exists(self._name):
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            self._catalog.create_table_if_not_exists(self._name, schema)
        table = self._fresh()
        if not table.spec().is_unpartitioned():
            raise Rejected(f"Iceberg table {self._name} is partitioned; a pipeline writes to unpartitioned tables only")
        existing = _plain_schema(table)
        differences = [
            f"column {field.name} is {field.type}, in the table {existing.field(field.name).type}"
            for field in schema
            if field.name in existing.names and _shape(existing.field(field.name).type) != _shape(field.type)
        ]
        if differences:
            raise Rejected(incompatible(f"Iceberg table {self._name}", differences))
        if any(field.name not in existing.names for field in schema):
            with table.update_schema() as update:
                update.union_by_name(schema)
            table = self._fresh()
            # Files are matched to columns by name, and the mapping is made when the first file is added.
            mapping = table.schema().name_mapping.model_dump_json()
            table.transaction().set_properties({"schema.name-mapping.default": mapping}).commit_transaction()
            existing = _plain_schema(self._fresh())
        self.location.make()
        self._schema = existing
        return existing

    def last(self, owner: str) -> CommitRecord | None:
        if not self._catalog.table_exists(self._name):
            return None
        text = self._fresh().properties.get(_property(owner))
        return None if text is None else msgspec.json.decode(text, type=CommitRecord)

    def committed(self, owner: str, query: str) -> int | None:
        record = self.last(owner)
        return record.batch if record is not None and record.query == query else None

    def commit(self, record: CommitRecord, files: list[WrittenFile]) -> str:
        with self._transaction(record) as transaction:
            if files:
                paths = [f"{self.location.address}/{file.path}" for file in files]
                transaction.add_files(paths, snapshot_properties=_snapshot(record), check_duplicate_files=False)
        return self.version()

    def scan(self) -> Iterator[Any]:
        return iter(self._fresh().scan().to_arrow_batch_reader())

    def remove(self, record: CommitRecord, record_offsets: RecordOffsets) -> None:
        of: Any = need_extra("pyiceberg.expressions", "Iceberg tables")
        wanted = [
            of.And(of.EqualTo("topic", topic), of.EqualTo("partition", partition), of.In("offset", offsets))
            for topic, partitions in record_offsets.items()
            for partition, offsets in partitions.items()
        ]
        with self._transaction(record) as transaction:
            transaction.delete(wanted[0] if len(wanted) == 1 else of.Or(*wanted), snapshot_properties=_snapshot(record))

    def version(self) -> str:
        snapshot = self._fresh().current_snapshot()
        return "empty" if snapshot is None else str(snapshot.snapshot_id)

    def compact(self) -> int:
        table = self._fresh()
        tasks = [task.file for task in table.scan().plan_files() if not task.delete_files]
        small = [file for file in tasks if file.file_size_in_bytes < _SMALL_BYTES]
        if len(small) < _SMALL_FILES:
            return 0
        schema = self._schema or _plain_schema(table)
        writer = FileWriter(self.location, f"merged-{uuid.uuid4().hex[:8]}", schema)
        chosen: list[Any] = []
        size = 0
        for file in small:
            if size + file.file_size_in_bytes > _GROUP_BYTES:
                break
            size += file.file_size_in_bytes
            chosen.append(file)
            for batch in pq.read_table(_path(file.file_path)).to_batches():
                writer.write(conform(batch, schema))
        merged = [f"{self.location.address}/{file.path}" for file in writer.close()]
        with table.transaction() as transaction:
            from pyiceberg.io.pyarrow import parquet_files_to_data_files

            added = list(parquet_files_to_data_files(table.io, transaction.table_metadata, iter(merged)))
            with transaction.update_snapshot().overwrite() as overwrite:
                for file in chosen:
                    overwrite.delete_data_file(file)
                for file in added:
                    overwrite.append_data_file(file)
        return len(chosen) - len(merged)

    def expire(self, keep_days: int) -> int:
        # Their data files stay: pyiceberg removes none, and a snapshot that stays may name them.
        table = self._fresh()
        before = datetime.now(UTC) - timedelta(days=keep_days)
        known = {one.snapshot_id for one in table.snapshots()}
        kept = {one.snapshot_id for one in table.metadata.refs.values()}
        before_ms = int(before.timestamp() * 1000)
        if any(one.timestamp_ms < before_ms and one.snapshot_id not in kept for one in table.snapshots()):
            table.maintenance.expire_snapshots().older_than(before).commit()
        return len(known) - len(self._fresh().snapshots())

    def _transaction(self, record: CommitRecord) -> Any:
        """A transaction that adds a record, and is not repeated by the library; the opening prose says why."""
        table = self._fresh()
        table.metadata.properties["commit.retry.num-retries"] = "0"  # in memory only
        transaction = table.transaction()
        transaction.set_properties({_property(record.owner): msgspec.json.encode(record).decode()})
        return transaction

    def _fresh(self) -> Any:
        self._table = self._catalog.load_table(self._name)
        return self._table


def _property(owner: str) -> str:
    return f"millstream.{owner}"


def _snapshot(record: CommitRecord) -> dict[str, str]:
    return {"millstream.query": record.query, "millstream.batch": str(record.batch)}


def _path(location: str) -> str:
    return location.removeprefix("file://")


def _plain_schema(table: Any) -> Any:
    """The table's schema as files have it: without field ids, which files that are added must not carry."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    found = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([pa.field(field.name, _shape(field.type)) for field in found])


def _shape(kind: Any) -> Any:
    """A type as Iceberg stores it, in the forms that Spark's Arrow batches have."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(kind.field(i).name, _shape(kind.field(i).type)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_shape(kind.key_type), _shape(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _shape(kind.value_type)))
    return kind

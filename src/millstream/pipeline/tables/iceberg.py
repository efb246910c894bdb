"""Iceberg tables through ``pyiceberg``, without a JVM.

A writer's record is a property of the table, set in the transaction that adds the batch's files: it is atomic with the
snapshot and outlives the snapshot's expiry. The record has the snapshot's id. A roll-back changes the present snapshot
and leaves the properties, so a record stands only if its snapshot is the present one or an ancestor of it. Snapshots
carry the record in their summary, too, so that the newest one that stands is found, also where the property was
removed. An owner may roll a table back and
pick single snapshots into it again ("cherry-pick"): such a snapshot names the one that it repeats.

pyiceberg repeats a refused commit by itself and rebases it, which would let two runs add the same batch. That is
switched off: a refused one comes back as an error, and the caller looks the batch up first. Every commit makes a
snapshot, also a claim and a batch without rows, because catalogs compare snapshots and may join changes of properties.

Files carry Iceberg's field ids, and upkeep reads them by id: a name may belong to another column when files are merged.
A record has the ids of the writer's columns (``iceberg_columns``).
"""

import contextlib
import datetime as dt
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import Rejected, Unavailable
from millstream.objects.credentials import aws_settings
from millstream.pipeline.changes import Changes
from millstream.pipeline.extra import need_extra
from millstream.pipeline.files import FileWriter, WrittenFile
from millstream.pipeline.layout import conform
from millstream.pipeline.locations import Location, absolute, local_path
from millstream.pipeline.tables.columns import Change, changes, require_columns
from millstream.pipeline.tables.guard import require_own, require_same, require_standing
from millstream.pipeline.tables.iceberg_columns import (
    FieldNames,
    field_id,
    named_by_its_owner,
    names_of,
    row_schema,
    schema_of_files,
    table_path,
)
from millstream.pipeline.tables.iceberg_creation import FORMAT, create
from millstream.pipeline.tables.iceberg_files import IcebergFiles
from millstream.pipeline.tables.iceberg_history import (
    guard_of,
    kept_snapshots,
    place_of,
    property_of,
    records_of,
    standing_of,
    summary_of,
)
from millstream.pipeline.tables.iceberg_nulls import keep_nulls
from millstream.pipeline.tables.merging import TableFile, joined, known, merged, without_earlier
from millstream.pipeline.tables.table import (
    CommitRecord,
    Declared,
    RecordOffsets,
    TableChanged,
    made_again,
    no_longer_there,
)
from millstream.pipeline.upkeep import Unreferenced

_CATALOGS: Final = ("rest", "sql")
_STORES: Final = ("s3://", "s3a://")
_DAY_MS: Final = 86_400_000
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

    keep_nulls()
    if declared is None:
        location = absolute(".millstream/iceberg", directory)
        misread = [character for character in "%#?" if character in location]
        if misread:
            raise Rejected(
                f"the Iceberg tables beside the file would be in {location}, and addresses of Iceberg do not carry "
                f"{' and '.join(misread)}; move the file, or name a catalog:"
            )
        os.makedirs(location, exist_ok=True)
        declared = {
            "type": "sql",
            "uri": f"sqlite:///{location}/catalog.db",
            "warehouse": f"file://{location}/warehouse",
        }
    named = {**_store_properties(), **declared}
    if _require_tested(named) == "rest":
        logging.getLogger("pyiceberg.catalog").addFilter(_is_news)
    try:
        return load_catalog(named.pop("name", "millstream"), **named)
    except OSError as error:  # a REST catalog is asked for its configuration
        reason = str(getattr(error.args[0] if error.args else error, "reason", error)).rpartition(": ")[2]
        raise Unavailable(
            f"the Iceberg catalog at {declared.get('uri')} does not answer ({reason}); start it, or correct catalog:"
        ) from error
    except (ValueError, ImportError) as error:
        raise Rejected(f"catalog: pyiceberg does not take these properties: {error}") from error


def _store_properties() -> dict[str, str]:
    """Where S3 is, if the environment says so; pyiceberg finds keys by itself."""
    settings = aws_settings(os.environ)
    return {f"s3.{name}": settings[name] for name in ("endpoint", "region") if name in settings}


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a log line of pyiceberg tells something. Old metadata files that it cannot delete at each commit do not:
    a REST catalog's server has deleted them.
    """
    return not record.getMessage().startswith("Failed to delete metadata file")


def _require_tested(named: Mapping[str, str]) -> str:
    """Refuse a catalog that no test has shown to keep a pipeline's promises; returns its type.

    Raises:
        Rejected: it is none of SQLite and REST.
    """
    uri, kind = named.get("uri", ""), named.get("type")
    if "py-catalog-impl" in named:
        kind = named["py-catalog-impl"]
    elif kind is None:
        kind = "rest" if uri.startswith("http") else "sql" if uri.startswith("sqlite") else uri.partition(":")[0]
    if kind == "sql" and not uri.startswith("sqlite"):
        kind = f"sql at {uri.partition(':')[0]}"
    if kind not in _CATALOGS:
        raise Rejected(
            f"catalog: {kind or 'without a type'} is not supported; supported are type: rest, and type: sql with "
            "uri: sqlite:///…"
        )
    return kind


class IcebergTable:
    """An Iceberg table of a catalog; ``name`` is ``namespace.table``.

    ``prepare`` reads the rules of a table and pins them: a commit is refused when they have changed since.
    """

    def __init__(self, catalog: Any, name: str, declared: Declared | None = None) -> None:
        self._catalog = catalog
        self._declared = declared or Declared()
        self._name = name
        self._schema: Any = None
        self._pinned: _Rules | None = None
        self._known = FieldNames()

    @property
    def location(self) -> Location:
        return _files(self._fresh())

    @property
    def key(self) -> tuple[str, ...]:
        if not self._declared.merges or self._declared.key:
            return self._declared.key
        names = self._identifiers(self._fresh()) if self.exists() else []
        if not names:
            raise Rejected(f"{self.shown} has no identifier fields: name the columns of its key with key:")
        return tuple(names)

    def _identifiers(self, table: Any) -> list[str]:
        """What rows call the table's identifier fields, in order."""
        ids = table.schema().identifier_field_ids
        if not ids:
            return []
        names = {field_id(field): field.name for field in row_schema(table, self._names(table))}
        return sorted(names.get(one) or table.schema().find_column_name(one) for one in ids)  # some are of structures

    def _names(self, table: Any) -> FieldNames:
        """What rows call the table's fields; before this writer is known, what any writer does."""
        return self._known if self._known.columns else _all_names(table)

    def exists(self) -> bool:
        return bool(self._catalog.table_exists(self._name))

    def inspect(self, schema: Any | None) -> None:
        if schema is not None:
            require_columns(self.shown, schema)
        if self.exists():
            table = self._fresh()
            self._require_known(table)
            if schema is not None:
                changes(self.shown, schema, row_schema(table, _all_names(table)), _can_widen)

    def columns(self) -> Any:
        if not self.exists():
            return None
        table = self._fresh()
        return row_schema(table, self._names(table))

    def prepare(self, schema: Any) -> Any:
        require_columns(self.shown, schema)
        if not self.exists():
            create(self._catalog, self._name, schema, self.key, self._declared, self.shown)
        table = self._fresh()
        self._require_known(table)
        existing = self._rows(table)
        lacking = changes(self.shown, schema, existing, _can_widen)
        if lacking:
            self._change(table, lacking, existing)
            table = self._fresh()
        self.location.make()
        self._pinned = _Rules.of(table)
        self._schema = self._rows(table)
        self._known = self._known.joined(names_of(schema, self._schema))
        return self._schema

    def _rows(self, table: Any) -> Any:
        """The table's columns by the names that rows have: what its owner has renamed keeps the name that this writer
        knows it by.
        """
        return row_schema(table, self._known)

    def _change(self, table: Any, lacking: Sequence[Change], existing: Any) -> None:
        """Add and widen columns.

        Raises:
            Rejected: a field to add has the name that another one was given by its owner.
        """
        for change in lacking:
            before = None if change.wider else named_by_its_owner(existing, change.path)
            if before is not None:
                shown, name = ".".join((*change.path[:-1], before)), ".".join(change.path)
                raise Rejected(
                    f"{self.shown}: the result's column {shown} is called {name} since its owner renamed it, and the "
                    f"result has another column {name}: give one another name in the query"
                )
        with table.update_schema() as update:
            for change in lacking:
                path = table_path(existing, change.path)
                if change.wider:
                    update.update_column(path, field_type=_iceberg_type(change.field))
                else:
                    update.add_column(path, _iceberg_type(change.field))

    def guard(self, owner: str) -> CommitRecord | None:
        if not self.exists():
            return None
        table = self._fresh()
        found = guard_of(table, owner)
        # A backfill and a replay have the rows of their main sink, and may come before its first batch, or after it.
        main = owner.partition("~")[0]
        of_all = _all_names(table, lambda other: other.partition("~")[0] == main)
        own = of_all if found is None else of_all.joined(FieldNames.of(found))
        self._known = own.joined(self._known)
        return found

    def standing(self, owner: str) -> CommitRecord | None:
        if not self.exists():
            return None
        table = self._fresh()
        return standing_of(table, guard_of(table, owner))

    def claim(self, record: CommitRecord, after: CommitRecord | None) -> None:
        table = self._fresh()
        require_same(guard_of(table, record.owner), after)
        self._add(table, record, [])

    def last(self, owner: str) -> CommitRecord | None:
        found = self.guard(owner)
        return found if found is not None and found.begun else None

    def committed(self, owner: str, query: str) -> int | None:
        found = self.guard(owner)
        return found.batch if found is not None and found.begun and found.query == query else None

    def commit(self, record: CommitRecord, files: list[WrittenFile], after: CommitRecord | None = None) -> str:
        self._add(self._checked(record, after), record, files)
        return self.version()

    def _checked(self, record: CommitRecord, after: CommitRecord | None) -> Any:
        """The table as it is now, if the record may be added to it."""
        table = self._fresh()
        if self._pinned is not None:
            self._pinned.require(_Rules.of(table), self.shown)
        found = guard_of(table, record.owner)
        require_own(self.shown, found, record)
        if after is not None:
            require_standing(self.shown, found, standing_of(table, found), after)
        return table

    def lacking(self, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        location = self.location
        return [file for file in files if not location.has(file.path)]

    def merge(self, record: CommitRecord, changes: Callable[[], Changes], after: CommitRecord | None = None) -> str:
        table = self._checked(record, after)
        self._require_known(table)
        made = merged(self._data_files(table), changes(), _files(table), self._schema)
        self._add(table, record, made.added, made.removed)
        return self.version()

    def later(self, changes: Changes) -> Any:
        return known(self._data_files(self._fresh()), changes)

    def _data_files(self, table: Any) -> IcebergFiles:
        return IcebergFiles(table, self._rows(table), self.key)

    def _add(
        self, table: Any, record: CommitRecord, files: list[WrittenFile], removed: Sequence[TableFile] = ()
    ) -> None:
        """Commit files and record as one snapshot. Without files, too: the snapshot is what a concurrent commit of
        another run is refused by.
        """
        known = self._known if self._known.columns else FieldNames.of(record)
        uuid_ = str(table.metadata.table_uuid)
        record = msgspec.structs.replace(record, table=uuid_, at="", columns=known.columns, members=known.members)
        with self._once(table) as transaction:
            snapshot = transaction.update_snapshot(snapshot_properties=summary_of(record))
            with snapshot.overwrite() if removed else snapshot.fast_append() as update:
                _replace(table, update, removed, files)
            made = transaction.table_metadata.current_snapshot()
            record = msgspec.structs.replace(record, at=place_of(made))
            transaction.set_properties({property_of(record.owner): msgspec.json.encode(record).decode()})

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
            transaction.delete(
                wanted[0] if len(wanted) == 1 else of.Or(*wanted), snapshot_properties=summary_of(record)
            )

    def forget(self, record: CommitRecord, column: str, before: dt.datetime) -> bool:
        table = self._fresh()
        schema = self._rows(table)
        files = IcebergFiles(table, schema, [column])
        made = without_earlier(files, column, before, self.key, _files(table), schema)
        if made is not None:
            self._add(table, record, made.added, made.removed)
        return made is not None

    def before(self, owner: str, batch: int) -> Iterator[tuple[CommitRecord, Iterator[Any]]]:
        table = self._fresh()
        for snapshot, record in records_of(table, owner):
            if record.batch > batch and snapshot.parent_snapshot_id is not None:
                with contextlib.suppress(ValueError, OSError):  # expired since
                    yield record, iter(table.scan(snapshot_id=snapshot.parent_snapshot_id).to_arrow_batch_reader())

    def drop(self) -> None:
        location = self.location  # asks the catalog
        self._catalog.purge_table(self._name)
        location.remove()

    def version(self) -> str:
        snapshot = self._fresh().current_snapshot()
        return "empty" if snapshot is None else str(snapshot.snapshot_id)

    def compact(self) -> int:
        table = self._fresh()
        self._require_known(table)
        location = _files(table)
        location.make()
        key = self.key
        schema = row_schema(table, _all_names(table) if key else None)
        if key:
            made = joined(IcebergFiles(table, schema, key, joinable=True), key, location, schema)
            if made is not None:
                with self._once(table) as transaction, transaction.update_snapshot().overwrite() as overwrite:
                    _replace(table, overwrite, made.removed, made.added)
            return 0 if made is None else len(made.removed) - len(made.added)
        groups: dict[str, list[Any]] = {}
        spec_id = table.spec().spec_id
        for task in table.scan().plan_files():
            file = task.file
            if file.file_size_in_bytes < _SMALL_BYTES and not task.delete_files and file.spec_id == spec_id:
                groups.setdefault(str(file.partition), []).append(task)
        chosen = _first_bytes(max(groups.values(), key=len, default=[]))
        if len(chosen) < _SMALL_FILES:
            return 0
        writer = FileWriter(location, f"merged-{uuid.uuid4().hex[:8]}", schema)
        # By field ids, as every scan: a column may have had another name when a file was written.
        for batch in _scan(table).to_record_batches(chosen):
            writer.write(conform(batch, schema))
        merged = [_data_file(table, f"{location.address}/{file.path}", file) for file in writer.close()]
        with self._once(table) as transaction, transaction.update_snapshot().overwrite() as overwrite:
            _take_out([task.file for task in chosen], overwrite)
            for file in merged:
                overwrite.append_data_file(file)
        return len(chosen) - len(merged)

    def expire(self, keep_days: float) -> int:
        table = self._fresh()
        self._require_known(table)
        own = table.properties
        if own.get("gc.enabled", "true").lower() == "false":
            return 0
        age_ms = max(keep_days * _DAY_MS, int(own.get("history.expire.max-snapshot-age-ms", 0)))
        kept = set(kept_snapshots(table, time.time() * 1000, age_ms))
        before_ms = time.time() * 1000 - age_ms
        old = [one for one in table.snapshots() if one.timestamp_ms < before_ms and one.snapshot_id not in kept]
        if old:
            unreferenced = Unreferenced(table, old)
            table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
            unreferenced.remove(self._fresh())  # pyiceberg removes none
        return len(old)

    def _transaction(self, record: CommitRecord) -> Any:
        """A transaction that adds a record."""
        transaction = self._once(self._fresh())
        transaction.set_properties({property_of(record.owner): msgspec.json.encode(record).decode()})
        return transaction

    def _once(self, table: Any) -> Any:
        """A transaction on the table as it is now that is not repeated by the library (the opening prose says why)."""
        update: Any = need_extra("pyiceberg.table.update", "Iceberg tables")
        metadata = table.metadata
        metadata.properties["commit.retry.num-retries"] = "0"  # in memory only
        transaction = table.transaction()
        transaction._apply(  # a catalog may otherwise join the commit with a change of the schema
            (),
            (
                update.AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
                update.AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
                update.AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id),
            ),
        )
        return transaction

    def _require_known(self, table: Any) -> None:
        """Refuse a table with rules that this writer does not keep.

        Raises:
            Rejected: it has some; the message names them.
        """
        unknown = _unknown(table, self.key, self._identifiers(table))
        now = table.current_snapshot()
        deletes = "0" if now is None or now.summary is None else now.summary.get("total-equality-deletes", "0")
        if self._declared.merges and deletes != "0":
            unknown.append("equality deletes, which are not read here until its data files are rewritten")
        if unknown:
            raise Rejected(f"{self.shown} has {'; '.join(unknown)}. A pipeline does not write to such a table")

    @property
    def shown(self) -> str:
        return f"Iceberg table {self._name}"

    def _fresh(self) -> Any:
        errors: Any = need_extra("pyiceberg.exceptions", "Iceberg tables")
        try:
            return self._catalog.load_table(self._name)
        except errors.NoSuchTableError:
            raise no_longer_there(self.shown) from None


class _Rules(msgspec.Struct, frozen=True):
    """What a table's owner has decided, as far as files depend on it."""

    table: str
    version: int
    schema: str
    spec: str
    sort_order: str
    files: str

    @classmethod
    def of(cls, table: Any) -> "_Rules":
        spec, order = table.spec().model_dump_json(), table.sort_order().model_dump_json()
        uuid_, schema = str(table.metadata.table_uuid), table.schema().model_dump_json(exclude={"schema_id"})
        return cls(uuid_, table.format_version, schema, spec, order, _files(table).address)

    def require(self, now: "_Rules", shown: str) -> None:
        """Refuse other rules.

        Raises:
            Rejected: it is another table.
            TableChanged: its rules have changed.
        """
        if now.table != self.table:
            raise Rejected(made_again(shown, self.table, now.table))
        if now != self:
            raise TableChanged(f"{shown} has been changed by its owner")


def _unknown(table: Any, key: Sequence[str], names: Sequence[str]) -> list[str]:
    """Rules of a table that a writer with this key does not keep, in words; ``names`` are its identifier fields."""
    from pyiceberg.transforms import (
        IdentityTransform,
        TimeTransform,
        TruncateTransform,
        UnknownTransform,
        VoidTransform,
    )

    found: list[str] = []
    if table.format_version > FORMAT:
        found.append(f"format version {table.format_version}, and version {FORMAT} is the newest that is known here")
    place = _files(table)
    if not place.is_local and not place.address.startswith(_STORES):
        found.append(f"its files at {place.address}, and files of Iceberg are written to disks and to s3:// here")
    if names and list(names) != sorted(key):
        why = f"which are not the key ({', '.join(key)})" if key else "which rows that are only appended may repeat"
        found.append(f"identifier fields ({', '.join(names)}), {why}")
    for field in table.spec().fields:
        if isinstance(field.transform, VoidTransform):
            continue  # a part that its owner has removed, in format version 1
        if isinstance(field.transform, UnknownTransform):
            found.append(f"the partition transform {field.transform} on {field.name}")
        if len(_source_path(table.schema(), field.source_id)) != 1:
            found.append(f"the partition field {field.name} inside a structure")
    for field in table.sort_order().fields:
        kept = isinstance(field.transform, IdentityTransform | TruncateTransform | TimeTransform)
        if not kept or len(_source_path(table.schema(), field.source_id)) != 1:
            found.append(f"the sort order {field}")
    return found


def _replace(table: Any, update: Any, removed: Sequence[TableFile], added: Sequence[WrittenFile]) -> None:
    """Name files that a snapshot takes out and adds."""
    place = _files(table).address
    _take_out([file.own.file for file in removed], update)
    for file in added:
        update.append_data_file(_data_file(table, f"{place}/{file.path}", file))


def _take_out(files: Sequence[Any], update: Any) -> None:
    """Name files that a snapshot takes out. pyiceberg looks for them in the manifests whose bounds take their partition
    in, and knows neither NaN nor infinity there; so with numbers of that kind it is to look in all manifests.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.typedef import KeyDefaultDict

    for file in files:
        update.delete_data_file(file)
    values = (file.partition[index] for file in files for index in range(len(file.partition)))
    if any(isinstance(value, float) for value in values):
        update._build_delete_files_partition_predicate = lambda: None
        update.partition_filters = KeyDefaultDict(lambda _: AlwaysTrue())


def _source_path(schema: Any, field_id: int) -> list[str]:
    """The top-level column with this id; several names for a field inside of one."""
    top = [field.name for field in schema.fields if field.field_id == field_id]
    return top or ["", ""]


def _scan(table: Any) -> Any:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    return ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())


def _first_bytes(tasks: list[Any]) -> list[Any]:
    """As many of the tasks as make one merged file."""
    chosen: list[Any] = []
    size = 0
    for task in tasks:
        size += task.file.file_size_in_bytes
        if size > _GROUP_BYTES:
            break
        chosen.append(task)
    return chosen


def _data_file(table: Any, path: str, file: WrittenFile) -> Any:
    """A file as commits name it, with the statistics of its Parquet footer."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    metadata = table.metadata
    schema = schema_of_files(table.schema())
    with table.io.new_input(path).open() as stream:
        footer = pq.read_metadata(stream)

    def statistics(properties: Mapping[str, str]) -> dict[str, Any]:
        plan = compute_statistics_plan(schema, dict(properties))
        found = data_file_statistics_from_parquet_metadata(footer, plan, parquet_path_to_id_mapping(schema))
        return found.to_serialized_dict()

    try:
        known = statistics(metadata.properties)
    except (OverflowError, ValueError):  # a time that has no form in the library
        known = statistics({"write.metadata.metrics.default": "counts"})
    for number in _unbounded(footer, parquet_path_to_id_mapping(schema)):
        known["lower_bounds"].pop(number, None)
        known["upper_bounds"].pop(number, None)
    counts = msgspec.json.decode(file.nans or b"{}", type=dict[str, int])
    for name, number in _floats(schema):
        if name is not None and counts.get(name, 0) < max(file.rows, 1):
            # Iceberg's Java library skips a file of nothing but NaN for each comparison; in Spark NaN is the greatest.
            known["nan_value_counts"] = {**(known.get("nan_value_counts") or {}), number: counts.get(name, 0)}
        if name is None or counts.get(name):  # where NaN is or may be, bounds of the other values mislead readers
            known["lower_bounds"].pop(number, None)
            known["upper_bounds"].pop(number, None)
    order = metadata.default_sort_order_id
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=_partition(metadata, file.partition),
        file_size_in_bytes=file.bytes,
        sort_order_id=order or None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **known,
    )


def _unbounded(footer: Any, ids: Mapping[str, int]) -> set[int]:
    """The columns of which a row group has values and no bounds, such as texts of more than 4 KiB. pyiceberg takes the
    bounds of the other row groups for those of the file.
    """
    found: set[int] = set()
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            known = chunk.statistics
            bounded = known is not None and (known.has_min_max or known.null_count == chunk.num_values)
            if not bounded:
                found.add(ids[chunk.path_in_schema])
    return found


def _floats(schema: Any) -> list[tuple[str | None, int]]:
    """Name and id of each column that NaN can be in; without a name inside of structures."""
    from pyiceberg.schema import index_by_id
    from pyiceberg.types import DoubleType, FloatType

    top = {field.field_id: field.name for field in schema.fields}
    found = index_by_id(schema).items()
    return [(top.get(key), key) for key, field in found if isinstance(field.field_type, DoubleType | FloatType)]


def _files(table: Any) -> Location:
    """The directory of a table's data files."""
    return Location(local_path(table.properties.get("write.data.path") or f"{table.location().rstrip('/')}/data"))


def _partition(metadata: Any, key: str) -> Any:
    """The partition of a file, from the key that its writer has given."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.typedef import Record

    texts = msgspec.json.decode(key, type=dict[str, str | None]) if key else {}
    values: list[Any] = []
    for field in metadata.spec().fields:
        text = texts.get(field.name)
        if text is None:
            values.append(None)
        else:
            kind = field.transform.result_type(metadata.schema().find_type(field.source_id))
            values.append(from_bytes(kind, bytes.fromhex(text)))
    return Record(*values)


def _can_widen(old: Any, new: Any) -> bool:
    """The type promotions of Iceberg's specification, version 2 ("Schema Evolution")."""
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return new.scale == old.scale and new.precision > old.precision
    return (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def _iceberg_type(field: Any) -> Any:
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids  # pyright: ignore[reportPrivateUsage]

    return _pyarrow_to_schema_without_ids(pa.schema([field])).fields[0].field_type


def _all_names(table: Any, wanted: Callable[[str], bool] = lambda _: True) -> FieldNames:
    """What the writers of a table call its fields; ``wanted`` is given the owner of a record."""
    found, prefix = FieldNames(), property_of("")
    for name, text in table.properties.items():
        if name.startswith(prefix) and wanted(name.removeprefix(prefix)):
            with contextlib.suppress(msgspec.MsgspecError):  # a property of others, or damaged
                found = found.joined(FieldNames.of(msgspec.json.decode(text, type=CommitRecord)))
    return found

"""Delta tables through ``deltalake``, without a JVM.

A writer's guard is Delta's own: a ``txn`` action of each commit has the writer's name and the number of its record. It
is in the table's state, so neither the log's clean-up nor commits of others hide it, and delta-rs refuses a concurrent
commit with the same name. The record itself is a file, ``_millstream/<writer>/<number>.json``, which is there before
the commit that names it; directories that start with an underscore are left alone by Delta's clean-up. Numbers are
times in nanoseconds, so no two attempts share one.

delta-rs rebases a commit onto those that others have made since. It does not notice that an OPTIMIZE among them has
taken out a file that the commit takes out, too, and rows would be there twice. Its own compaction has that fault even
with no retries. Therefore a commit that takes files out (a merge, a removal, joined files) directly
follows the version that it has read, or is refused. A merge is tried again as it is if the commits in between have left
its files alone and are no merges, so that a busy writer of other rows does not starve it, and done again otherwise.

``RESTORE`` brings rows back and leaves the ``txn`` action. Therefore a record has the version that it was committed
after, and the commits since then are looked through for one that restores an older version.

In an object store a commit is a conditional write: of two commits of one version the store refuses the second, and that
is what the guard stands on. A store without conditional writes is refused.
"""

import contextlib
import datetime as dt
import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.changes import Changes
from millstream.pipeline.extra import need_extra
from millstream.pipeline.files import WrittenFile
from millstream.pipeline.layout import (
    FIELD_ID,
    FILE_NAME,
    PartitionField,
    Rules,
    SortField,
    names_directories,
    rules_of,
    with_rules,
)
from millstream.pipeline.locations import Location, store_options
from millstream.pipeline.tables.columns import addition, changes, plain, require_columns
from millstream.pipeline.tables.delta_files import DeltaFiles, holds, paths_of, removals
from millstream.pipeline.tables.guard import require_own, require_same, require_standing
from millstream.pipeline.tables.merging import Rewritten, TableFile, joined, known, merged, without_earlier
from millstream.pipeline.tables.table import (
    CommitRecord,
    Declared,
    RecordOffsets,
    TableChanged,
    made_again,
    no_longer_there,
)

_RECORD: Final = "millstream.record"
_GUARDS: Final = "_millstream"
_HISTORY: Final = 1000
_KEPT_RECORDS: Final = 1000
"""Records of a writer that stay, for tables that are set back."""
_PRUNE_EVERY: Final = 100
_RESTORE: Final = "RESTORE"
_CHECK: Final = "delta.constraints."
_READER: Final = 3
_WRITER: Final = 7
_IDENTITY: Final = 6
"""The writer version that stands for the feature identityColumns."""
_FEATURES: Final = frozenset(
    {
        "appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "columnMapping",
        "timestampNtz", "deletionVectors", "v2Checkpoint",
    }
)  # fmt: skip
"""Table features under which delta-rs adds files; the rules that some of them allow are looked for by themselves."""
_UPKEEP_FEATURES: Final = frozenset({"appendOnly", "invariants", "changeDataFeed", "timestampNtz"})
"""Table features under which files can be merged and removed."""
_KEEPS_ROWS: Final = {"delta.appendOnly": "rows that stay for ever", "delta.enableChangeDataFeed": "a change data feed"}
"""Properties under which rows are not replaced here."""
_COLUMN_RULES: Final = {
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "identity values",
    "delta.invariants": "an invariant",
    "CURRENT_DEFAULT": "a default value",
    "__CHAR_VARCHAR_TYPE_STRING": "a bounded length",
}
"""Rules in a column's metadata that this writer does not keep."""
_REBASES: Final = 10
"""Commits of one merge before all of it is done again."""


class DeltaTable:
    """A Delta table at a path or address."""

    def __init__(self, location: Location, declared: Declared | None = None) -> None:
        self._delta: Any = need_extra("deltalake", "Delta tables")
        self._declared = declared or Declared()
        if location.is_local and "%" in location.address:
            raise Rejected(f"{location.address}: most readers take % in the path of a Delta table for an escape")
        self._location = location
        self._storage = store_options(location)
        self._table: Any = None
        self._schema: Any = None
        self._pinned: _Rules | None = None
        self._known: dict[tuple[str, int], CommitRecord] = {}
        self._former: list[tuple[int, CommitRecord]] | None = None

    @property
    def location(self) -> Location:
        return self._location

    @property
    def key(self) -> tuple[str, ...]:
        return self._declared.key if self._declared.merges else ()

    def exists(self) -> bool:
        return self._existing() is not None

    def inspect(self, schema: Any | None) -> None:
        if schema is not None:
            require_columns(self.shown, schema)
        table = self._existing()
        if table is not None:
            self._require_known(table)
            if schema is not None:
                changes(self.shown, schema, _row_schema(table), None)

    def columns(self) -> Any:
        table = self._existing()
        return None if table is None else _row_schema(table)

    def prepare(self, schema: Any) -> Any:
        require_columns(self.shown, schema)
        table = self._existing()
        self._location.require_conditional_writes("a Delta table's commits")
        if table is None:
            self._location.make()
            self._create(schema)
            table = self._fresh()
        self._require_known(table)
        existing = _row_schema(table)
        new = changes(self.shown, schema, existing, None)
        if new:
            if _mapped(table):
                lacking = ", ".join(".".join(change.path) for change in new)
                raise Rejected(
                    f"{self.shown} has column mapping and lacks {lacking}: its owner has to add such columns"
                )
            for change in new:
                added = pa.schema([addition(change, existing)])
                table.alter.add_columns(self._delta.Schema.from_arrow(added).fields)
                table = self._fresh()
        self._pinned = _Rules.of(table)
        self._schema = self._file_schema(table)
        return self._schema

    def _file_schema(self, table: Any) -> Any:
        """The columns and rules of files. Those of a table with a key are in the order of the key, as far as it is not
        that of the partitions, whose columns files lack.
        """
        schema = _row_schema(table)
        parts = table.metadata().partition_columns
        order = tuple(SortField(name, False, True) for name in self.key if name not in parts)
        return with_rules(schema, msgspec.structs.replace(rules_of(schema), sort=order)) if order else schema

    def _create(self, schema: Any) -> None:
        """Make the table unless it is there.

        Raises:
            Rejected: it cannot have the declared partitions or properties.
        """
        required = pa.schema([field.with_nullable(field.name not in self.key) for field in schema])
        partition = [part.column for part in self._declared.partition]
        unnamed = next((name for name in partition if not names_directories(name)), None)
        if unnamed is not None:
            raise Rejected(f"{self.shown}: create: the name of column {unnamed} cannot be that of a directory")
        lacking = [name for name in partition if name not in schema.names]
        if lacking:
            raise Rejected(
                f"{self.shown}: create names column {lacking[0]}, and the rows have {', '.join(schema.names)}"
            )
        try:
            made = self._delta.Schema.from_arrow(required)
        except Exception as error:  # the library's own has no other class
            raise Rejected(f"{self.shown} cannot have these columns: {str(error).splitlines()[0]}") from error

        def make(address: str, storage: Any) -> Any:
            return self._delta.DeltaTable.create(
                address, schema=made, mode="ignore", storage_options=storage,
                partition_by=partition or None, configuration=self._declared.properties,
            )  # fmt: skip

        try:
            with tempfile.TemporaryDirectory() as trial:  # a table that is refused afterwards would stay
                self._require_known(make(trial, None))
            make(self._location.address, self._storage)
        except (self._delta.exceptions.DeltaError, ValueError) as error:
            raise Rejected(f"{self.shown} cannot be made as create: says: {error}") from error

    def guard(self, owner: str) -> CommitRecord | None:
        table = self._existing()
        return None if table is None else self._guard(table, owner)

    def standing(self, owner: str) -> CommitRecord | None:
        table = self._existing()
        return None if table is None else self._standing(table, self._guard(table, owner))

    def claim(self, record: CommitRecord, after: CommitRecord | None) -> None:
        table = self._fresh()
        require_same(self._guard(table, record.owner), after)
        self._add(table, record, [])

    def last(self, owner: str) -> CommitRecord | None:
        found = self.guard(owner)
        return found if found is not None and found.begun else None

    def committed(self, owner: str, query: str) -> int | None:
        found = self.guard(owner)
        return found.batch if found is not None and found.begun and found.query == query else None

    def _guard(self, table: Any, owner: str) -> CommitRecord | None:
        """The record of a writer in a version of the table.

        Raises:
            Rejected: its file is missing.
        """
        number = table.transaction_version(_app_id(owner))
        if number is None:
            if self._former is None:  # read once: commits of this release bring a number
                self._former = list(self._records_in_log(_HISTORY))
            return _newest(self._former, owner, table.version())
        if (owner, number) not in self._known:
            try:
                text = (self._location / _GUARDS / owner).read(f"{number}.json")
            except FileNotFoundError:  # removed as one of many, or by others; its commit has it, too
                found = _newest(self._records_in_log(), owner, table.version())
                if found is None:
                    raise Rejected(
                        f"{self.shown} names a record of {owner} that is neither in its directory {_GUARDS} nor in its "
                        "log: was it copied or cleaned without that directory?"
                    ) from None
                text = msgspec.json.encode(found)
            try:
                self._known[owner, number] = msgspec.json.decode(text, type=CommitRecord)
            except msgspec.DecodeError as error:
                raise Rejected(
                    f"{self.shown}: the record {_GUARDS}/{owner}/{number}.json is damaged ({error}); restore it from a "
                    "copy of the table. The commit with this number has it in its commitInfo, too"
                ) from None
        return self._known[owner, number]

    def _records_in_log(self, commits: int | None = None) -> Iterator[tuple[int, CommitRecord]]:
        """The records in the log, or in its last commits, the newest first, with the versions that they made."""
        newest = self._delta.DeltaTable(self._location.address, storage_options=self._storage)
        for entry in newest.history(commits):  # delta-rs numbers the history of an older version wrongly
            text = entry.get(_RECORD)
            if text is not None:
                yield entry["version"], msgspec.json.decode(text, type=CommitRecord)

    def _older(self, version: int) -> Any:
        """The table as it was.

        Raises:
            Rejected: the log has that version no longer.
        """
        try:
            return self._delta.DeltaTable(self._location.address, version=version, storage_options=self._storage)
        except self._delta.exceptions.DeltaError as error:
            raise Rejected(f"{self.shown} was set back to version {version}, which cannot be read: {error}") from error

    def _standing(self, table: Any, found: CommitRecord | None) -> CommitRecord | None:
        if found is None or not found.at:
            return found
        if found.table != str(table.metadata().id):
            return None
        version = self._effective(table, found)
        return found if version is None else self._guard(self._older(version), found.owner)

    def _effective(self, table: Any, found: CommitRecord) -> int | None:
        """The version that the table was set back to, if that is older than a record; None if the record stands.

        A table is set back by a commit that names an older version, and the last such commit decides. Those that are
        no longer in the log cannot be known; they are held for harmless.
        """
        begun, now = int(found.at), int(table.version())
        if now <= begun:
            return None
        restored: dict[int, int] = {}
        for entry in table.history(now - begun):
            if entry.get("operation") == _RESTORE and entry["version"] > begun:
                restored[entry["version"]] = self._target(entry["version"], entry["operationParameters"])
        version = now
        while marks := [at for at in restored if at <= version]:
            version = restored[max(marks)]
        if version == now:
            return None
        return None if self._guard(self._older(version), found.owner) == found else version

    def _target(self, restored: int, parameters: Mapping[str, Any]) -> int:
        """The version that a RESTORE of a version number has brought back.

        It names a version or a time. Writers name times in forms of their own, without a zone in Spark, so then it is
        the newest one with the same files.

        Raises:
            Rejected: the log has that version no longer.
        """
        if parameters.get("version") not in (None, "null"):
            return int(parameters["version"])
        wanted = paths_of(self._older(restored))
        for version in range(restored - 1, -1, -1):
            if paths_of(self._older(version)) == wanted:
                return version
        raise Rejected(f"{self.shown} was set back to a time, and no version in its log has the files of that time")

    def commit(self, record: CommitRecord, files: list[WrittenFile], after: CommitRecord | None = None) -> str:
        self._add(self._checked(record, after), record, files)
        return self.version()

    def _checked(self, record: CommitRecord, after: CommitRecord | None) -> Any:
        """The table as it is now, if the record may be added to it."""
        table = self._fresh()
        if self._pinned is not None:
            self._pinned.require(_Rules.of(table), self.shown)
        found = self._guard(table, record.owner)
        require_own(self.shown, found, record)
        if after is not None:
            require_standing(self.shown, found, self._standing(table, found), after)
        return table

    def lacking(self, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        location = self.location
        return [file for file in files if not location.has(file.path)]

    def merge(self, record: CommitRecord, changes: Callable[[], Changes], after: CommitRecord | None = None) -> str:
        made, count, seen = Rewritten([], []), -1, frozenset[str]()
        for attempt in range(_REBASES):
            table, kept = self._checked(record, after), changes()
            files = self._files(table)
            if kept.rows.num_rows != count or not holds(files, seen, made.removed):
                count, seen = kept.rows.num_rows, files.paths
                made = merged(files, kept, self._location, self._schema)
            try:
                self._add(table, record, made.added, made.removed, merges=True)
            except self._delta.exceptions.CommitFailedError:  # another commit was faster
                if attempt == _REBASES - 1:
                    raise
            else:
                break
        return self.version()

    def later(self, changes: Changes) -> Any:
        return known(self._files(self._fresh()), changes)

    def _files(self, table: Any) -> DeltaFiles:
        return DeltaFiles(table, self._location, _row_schema(table), self.key)

    def _add(
        self,
        table: Any,
        record: CommitRecord,
        files: list[WrittenFile],
        removed: Sequence[TableFile] = (),
        *,
        merges: bool = False,
    ) -> None:
        properties = self._properties(table, record)
        if merges:
            properties.max_commit_retries = 0
        self._write(table, files, removed, properties)

    def _write(
        self,
        table: Any,
        files: Sequence[WrittenFile],
        removed: Sequence[TableFile],
        properties: Any,
        *,
        change: bool = True,
    ) -> None:
        now = int(time.time() * 1000)
        add = self._delta.transaction.AddAction
        actions = removals(self._delta, removed, data_change=change)
        actions += [add(file.path, file.bytes, _partition(file), now, change, file.stats) for file in files]
        partition = list(table.metadata().partition_columns)
        table.create_write_transaction(
            actions, "append", table.schema(), partition_by=partition, commit_properties=properties
        )

    def scan(self) -> Iterator[Any]:
        return iter(self._fresh().to_pyarrow_dataset().to_batches())

    def remove(self, record: CommitRecord, record_offsets: RecordOffsets) -> None:
        predicate = " OR ".join(
            f"(topic = '{topic}' AND partition = {partition} AND offset IN ({', '.join(map(str, offsets))}))"
            for topic, partitions in record_offsets.items()
            for partition, offsets in partitions.items()
        )  # a topic's name has no quotes
        table = self._fresh()
        properties = self._properties(table, record)
        properties.max_commit_retries = 0
        table.delete(predicate, commit_properties=properties)

    def forget(self, record: CommitRecord, column: str, before: dt.datetime) -> bool:
        table = self._fresh()
        files = DeltaFiles(table, self._location, _row_schema(table), [column])
        made = without_earlier(files, column, before, self.key, self._location, self._file_schema(table))
        if made is not None:
            self._add(table, record, made.added, made.removed, merges=True)
        return made is not None

    def before(self, owner: str, batch: int) -> Iterator[tuple[CommitRecord, Iterator[Any]]]:
        for version, record in self._records_in_log():
            if record.owner == owner and record.batch > batch:
                with contextlib.suppress(Rejected, OSError, self._delta.exceptions.DeltaError):  # cleaned since
                    yield record, iter(self._older(version - 1).to_pyarrow_dataset().to_batches())

    def drop(self) -> None:
        self._location.remove()

    def version(self) -> str:
        return str(self._fresh().version())

    def compact(self) -> int:
        table = self._fresh()
        self._require_known(table, upkeep=True)
        gone = 0
        while True:
            made = joined(self._files(table), self.key, self._location, self._file_schema(table))
            if made is None:
                return gone
            # After the version whose files were read, and no other: see the opening prose.
            properties = self._delta.CommitProperties(max_commit_retries=0)
            self._write(table, made.added, made.removed, properties, change=False)
            gone += len(made.removed) - len(made.added)
            table = self._fresh()

    def expire(self, keep_days: float) -> int:
        # Only files that a commit has removed: one that is not in the log may be about to be committed.
        table = self._fresh()
        self._require_known(table, upkeep=True)
        declared = table.metadata().configuration.get("delta.deletedFileRetentionDuration")
        hours = max(math.ceil(24 * keep_days), 0 if declared is None else _interval_hours(declared, self.shown))
        old = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False)
        gone = [path for path in old if self._location.has(path)]
        if gone:
            table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
        if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true").lower() != "false":
            table.cleanup_metadata()  # as old as delta.logRetentionDuration, and before a checkpoint
        return len(gone)

    def _require_known(self, table: Any, *, upkeep: bool = False) -> None:
        """Refuse a table with rules that this writer does not keep.

        Raises:
            Rejected: it has some; the message names them.
        """
        merges = self._declared.merges
        unknown = _unknown(table, _UPKEEP_FEATURES if upkeep or merges else _FEATURES)
        if (upkeep or merges) and _mapped(table):
            unknown.append("column mapping")
        if merges:
            own = table.metadata().configuration
            unknown += [f"{what} ({name})" for name, what in _KEEPS_ROWS.items() if own.get(name) == "true"]
        if unknown:
            what = "is not maintained here" if upkeep else "is not written to by a pipeline"
            what = "is not upserted into" if merges and not upkeep else what
            raise Rejected(f"{self.shown} has {'; '.join(unknown)}. Such a table {what}")

    @property
    def shown(self) -> str:
        return f"Delta table {self._location.address}"

    def _properties(self, table: Any, record: CommitRecord) -> Any:
        """What makes a commit the one of this record. Its file is there before the commit that names it."""
        before = table.transaction_version(_app_id(record.owner)) or 0
        number = max(before + 1, time.time_ns())
        record = msgspec.structs.replace(record, table=str(table.metadata().id), at=str(table.version()))
        text = msgspec.json.encode(record)
        place = self._location / _GUARDS / record.owner
        place.make()
        place.write(f"{number}.json", text, sync=True)
        self._known = {(record.owner, number): record}
        if number % _PRUNE_EVERY == 0:
            for name in place.files(".json")[:-_KEPT_RECORDS]:
                place.remove_file(name)
        transaction = self._delta.Transaction(_app_id(record.owner), number)
        return self._delta.CommitProperties(custom_metadata={_RECORD: text.decode()}, app_transactions=[transaction])

    def _existing(self) -> Any:
        if self._table is None and not self._delta.DeltaTable.is_deltatable(self._location.address, self._storage):
            return None
        return self._fresh()

    def _fresh(self) -> Any:
        options = store_options(self._location)
        if options != self._storage:  # other keys
            self._storage, self._table = options, None
        try:
            if self._table is not None:
                self._update(self._table)
            if self._table is None:
                self._table = self._delta.DeltaTable(self._location.address, storage_options=self._storage)
                self._former = None
        except self._delta.exceptions.TableNotFoundError:
            raise no_longer_there(self.shown) from None
        except self._delta.exceptions.DeltaError as error:
            if "Unsupported" not in str(error):
                raise
            raise Rejected(f"{self.shown} cannot be opened: {error}") from error
        return self._table

    def _update(self, table: Any) -> None:
        """Bring a table that is open to its newest version. It is closed if its log is another one now, such as an
        older copy, or missing.
        """
        try:
            table.update_incremental()
        except self._delta.exceptions.DeltaError:
            self._table = None
        else:  # which is silent about a log that is missing
            if not self._location.has(f"_delta_log/{table.version():020}.json"):
                self._table = None


def _newest(records: Iterable[tuple[int, CommitRecord]], owner: str, version: int) -> CommitRecord | None:
    """The newest record of a writer up to a version; earlier releases kept records in the log alone."""
    return next((record for at, record in records if record.owner == owner and at <= version), None)


def _app_id(owner: str) -> str:
    return f"millstream.{owner}"


class _Rules(msgspec.Struct, frozen=True):
    """What a table's owner has decided, as far as files depend on it."""

    table: str
    schema: str
    partition: tuple[str, ...]
    configuration: dict[str, str]
    protocol: str

    @classmethod
    def of(cls, table: Any) -> "_Rules":
        metadata = table.metadata()
        configuration = {name: text for name, text in metadata.configuration.items() if name.startswith("delta.")}
        partition = tuple(metadata.partition_columns)
        return cls(str(metadata.id), table.schema().to_json(), partition, configuration, str(table.protocol()))

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


def _unknown(table: Any, known: frozenset[str]) -> list[str]:
    """Rules of a table that this writer does not keep, in words."""
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if protocol.min_writer_version == _IDENTITY:
        features.add("identityColumns")
    found = [f"the table feature {name}" for name in sorted(features - known)]
    if protocol.min_reader_version > _READER or protocol.min_writer_version > _WRITER:
        found.append(f"reader version {protocol.min_reader_version} and writer version {protocol.min_writer_version}")
    checks = [name for name in metadata.configuration if name.startswith(_CHECK)]
    found += [
        f"the CHECK constraint {name.removeprefix(_CHECK)} ({metadata.configuration[name]})" for name in sorted(checks)
    ]
    fields = json.loads(table.schema().to_json())["fields"]
    for path, field in _fields(fields):
        found += [f"{what} in column {path}" for key, what in _COLUMN_RULES.items() if key in field["metadata"]]
        if field["type"] in ("variant", "void"):
            found.append(f"column {path} of type {field['type']}")
    for name in metadata.partition_columns:
        if any(field["name"] == name and field["type"] == "binary" for field in fields):
            found.append(f"the partition column {name} of type binary")
        if not _mapped(table) and not names_directories(name):
            found.append(f"the partition column {name!r}, whose name cannot be that of a directory")
    return found


def _fields(fields: list[Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a Delta schema, with its path."""
    for field in fields:
        yield path + field["name"], field
        yield from _fields(_members(field["type"]), f"{path}{field['name']}.")


def _members(kind: Any) -> list[Any]:
    """The fields of the structures in a type."""
    if isinstance(kind, str):
        return []
    if kind["type"] == "struct":
        return kind["fields"]
    inner = [kind["elementType"]] if kind["type"] == "array" else [kind["keyType"], kind["valueType"]]
    return [field for each in inner for field in _members(each)]


def _mapped(table: Any) -> bool:
    """Whether columns have other names in files."""
    return table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"


def _row_schema(table: Any) -> Any:
    """The table's columns, with the ids and the names that files have, and its rules."""
    declared = {field["name"]: field for field in json.loads(table.schema().to_json())["fields"]}
    mapped = _mapped(table)
    found = [_row_field(field, declared[field.name], mapped) for field in pa.schema(table.schema().to_arrow())]
    physical = {field.name: (field.metadata or {}).get(FILE_NAME, field.name.encode()).decode() for field in found}
    partition = [PartitionField(name, physical[name]) for name in table.metadata().partition_columns]
    return with_rules(pa.schema(found), Rules(tuple(partition)))


def _row_field(field: Any, declared: Any, mapped: bool) -> Any:
    own = declared["metadata"]
    metadata: dict[bytes, bytes] = {}
    if mapped:
        metadata[FILE_NAME] = own["delta.columnMapping.physicalName"].encode()
        metadata[FIELD_ID] = str(own["delta.columnMapping.id"]).encode()
    kind = _row_type(field.type, declared["type"], mapped)
    return pa.field(field.name, kind, field.nullable, metadata or None)


def _row_type(kind: Any, declared: Any, mapped: bool) -> Any:
    if pa.types.is_struct(kind):
        own = {field["name"]: field for field in declared["fields"]}
        members = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([_row_field(member, own[member.name], mapped) for member in members])
    if pa.types.is_map(kind):
        key = _row_type(kind.key_type, declared["keyType"], mapped)
        item = kind.item_field.with_type(_row_type(kind.item_type, declared["valueType"], mapped))
        return pa.map_(key, item.with_name("value"))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_field.with_type(_row_type(kind.value_type, declared["elementType"], mapped))
        return pa.list_(element.with_name("element"))
    return plain(kind)


def _partition(file: WrittenFile) -> dict[str, str | None]:
    return msgspec.json.decode(file.partition, type=dict[str, str | None]) if file.partition else {}


def _interval_hours(text: str, shown: str) -> int:
    """Hours of an interval such as ``interval 7 days``, rounded up.

    Raises:
        Rejected: its form is not known here.
    """
    match = re.fullmatch(r"(?:interval\s+)?(\d+)\s+(hour|day|week)s?", text.strip().lower())
    if match is None:
        raise Rejected(f"{shown} has delta.deletedFileRetentionDuration = {text!r}, which is not understood here")
    return int(match[1]) * {"hour": 1, "day": 24, "week": 168}[match[2]]

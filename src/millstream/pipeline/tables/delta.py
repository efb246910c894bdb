"""Delta tables through ``deltalake``, without a JVM.

A writer's guard is Delta's own: a ``txn`` action of each commit has the writer's name and the number of its record. It
is in the table's state, so neither the log's clean-up nor commits of others hide it, and delta-rs refuses a concurrent
commit with the same name. The record itself is a file, ``_millstream/<writer>/<number>.json``, which is there before
the commit that names it; directories that begin with an underscore are left alone by Delta's clean-up. Numbers are
times in nanoseconds, so no two attempts share one.

``RESTORE`` brings rows back and leaves the ``txn`` action. Therefore a record has the version that it was committed
after, and the commits since then are looked through for one that restores an older version.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.extra import need_extra
from millstream.pipeline.files import WrittenFile
from millstream.pipeline.layout import FIELD_ID, FILE_NAME, PartitionField, Rules, with_rules
from millstream.pipeline.locations import Location
from millstream.pipeline.tables.columns import addition, changes, plain
from millstream.pipeline.tables.guard import require_own, require_same, require_standing
from millstream.pipeline.tables.table import CommitRecord, RecordOffsets, TableChanged, made_again

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
_FEATURES: Final = frozenset(
    {
        "appendOnly", "invariants", "checkConstraints", "generatedColumns", "identityColumns", "allowColumnDefaults",
        "changeDataFeed", "columnMapping", "timestampNtz", "deletionVectors", "domainMetadata", "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)  # fmt: skip
"""Table features under which files can be added; the rules that some of them allow are looked for by themselves."""
_UPKEEP_FEATURES: Final = frozenset({"appendOnly", "invariants", "changeDataFeed", "timestampNtz"})
"""Table features under which files can be merged and removed."""
_COLUMN_RULES: Final = {
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "identity values",
    "delta.invariants": "an invariant",
    "CURRENT_DEFAULT": "a default value",
    "__CHAR_VARCHAR_TYPE_STRING": "a bounded length",
}
"""Rules in a column's metadata that this writer does not keep."""
_SMALL_BYTES: Final = 32 << 20
_SMALL_FILES: Final = 32
_TARGET_BYTES: Final = 256 << 20


class DeltaTable:
    """A Delta table at a path or address."""

    def __init__(self, location: Location, storage: Mapping[str, str] | None = None) -> None:
        self._delta: Any = need_extra("deltalake", "Delta tables")
        if location.is_local and "%" in location.address:
            raise Rejected(f"{location.address}: most readers take % in the path of a Delta table for an escape")
        self._location = location
        self._storage = dict(storage or {})
        self._table: Any = None
        self._schema: Any = None
        self._pinned: _Rules | None = None
        self._known: dict[tuple[str, int], CommitRecord] = {}

    @property
    def location(self) -> Location:
        return self._location

    def exists(self) -> bool:
        return self._existing() is not None

    def inspect(self, schema: Any | None) -> None:
        table = self._existing()
        if table is not None:
            self._require_known(table)
            if schema is not None:
                changes(self.shown, schema, _row_schema(table), None)

    def columns(self) -> Any:
        table = self._existing()
        return None if table is None else _row_schema(table)

    def prepare(self, schema: Any) -> Any:
        table = self._existing()
        if table is None:
            self._location.make()
            self._delta.DeltaTable.create(
                self._location.address, schema=schema, mode="ignore", storage_options=self._storage
            )
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
        self._schema = _row_schema(table)
        return self._schema

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
            Rejected: its file is gone.
        """
        number = table.transaction_version(_app_id(owner))
        if number is None:
            return _former_record(table, owner)
        if (owner, number) not in self._known:
            try:
                text = (self._location / _GUARDS / owner).read(f"{number}.json")
            except FileNotFoundError:
                raise Rejected(
                    f"{self.shown} names a record of {owner} that is not in its directory {_GUARDS}: was it copied or "
                    "cleaned without that directory?"
                ) from None
            self._known[owner, number] = msgspec.json.decode(text, type=CommitRecord)
        return self._known[owner, number]

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
                restored[entry["version"]] = self._target(entry["operationParameters"])
        version = now
        while marks := [at for at in restored if at <= version]:
            version = restored[max(marks)]
        if version == now:
            return None
        return None if self._guard(self._older(version), found.owner) == found else version

    def _target(self, parameters: Mapping[str, Any]) -> int:
        if parameters.get("version") not in (None, "null"):
            return int(parameters["version"])
        table = self._delta.DeltaTable(self._location.address, storage_options=self._storage)
        table.load_as_version(str(parameters.get("timestamp") or parameters.get("datetime")))
        return int(table.version())

    def commit(self, record: CommitRecord, files: list[WrittenFile], after: CommitRecord | None = None) -> str:
        table = self._fresh()
        if self._pinned is not None:
            self._pinned.require(_Rules.of(table), self.shown)
        found = self._guard(table, record.owner)
        require_own(self.shown, found, record)
        if after is not None:
            require_standing(self.shown, found, self._standing(table, found), after)
        self._add(table, record, files)
        return self.version()

    def _add(self, table: Any, record: CommitRecord, files: list[WrittenFile]) -> None:
        now = int(time.time() * 1000)
        actions = [
            self._delta.transaction.AddAction(file.path, file.bytes, _partition(file), now, True, file.stats)
            for file in files
        ]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=list(table.metadata().partition_columns),
            commit_properties=self._properties(table, record),
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
        table.delete(predicate, commit_properties=self._properties(table, record))

    def version(self) -> str:
        return str(self._fresh().version())

    def compact(self) -> int:
        table = self._fresh()
        self._require_known(table, upkeep=True)
        sizes = table.get_add_actions(flatten=True)
        sizes = pa.table(sizes).column("size_bytes").to_pylist()
        if sum(1 for size in sizes if size < _SMALL_BYTES) < _SMALL_FILES:
            return 0
        done = table.optimize.compact(target_size=_TARGET_BYTES)
        return int(done["numFilesRemoved"]) - int(done["numFilesAdded"])

    def expire(self, keep_days: int) -> int:
        # Only files that a commit has removed: one that is not in the log may be about to be committed.
        table = self._fresh()
        self._require_known(table, upkeep=True)
        declared = table.metadata().configuration.get("delta.deletedFileRetentionDuration")
        hours = max(24 * keep_days, 0 if declared is None else _interval_hours(declared, self.shown))
        old = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False)
        gone = [path for path in old if os.path.exists(os.path.join(self._location.address, path))]
        if gone:
            table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
        return len(gone)

    def _require_known(self, table: Any, *, upkeep: bool = False) -> None:
        """Refuse a table with rules that this writer does not keep.

        Raises:
            Rejected: it has some; the message names them.
        """
        unknown = _unknown(table, _UPKEEP_FEATURES if upkeep else _FEATURES)
        if upkeep and _mapped(table):
            unknown.append("column mapping")
        if unknown:
            what = "is not maintained here" if upkeep else "is not written to by a pipeline"
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
        try:
            if self._table is None:
                self._table = self._delta.DeltaTable(self._location.address, storage_options=self._storage)
            else:
                self._table.update_incremental()
        except self._delta.exceptions.DeltaError as error:
            if "Unsupported" not in str(error):
                raise
            raise Rejected(f"{self.shown} cannot be opened: {error}") from error
        return self._table


def _app_id(owner: str) -> str:
    return f"millstream.{owner}"


def _former_record(table: Any, owner: str) -> CommitRecord | None:
    """The record that an earlier release has left in the log, where alone it kept them."""
    for entry in table.history(_HISTORY):
        text = entry.get(_RECORD)
        if text is not None:
            record = msgspec.json.decode(text, type=CommitRecord)
            if record.owner == owner:
                return record
    return None


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
        Rejected: it is none that is known here.
    """
    match = re.fullmatch(r"(?:interval\s+)?(\d+)\s+(hour|day|week)s?", text.strip().lower())
    if match is None:
        raise Rejected(f"{shown} has delta.deletedFileRetentionDuration = {text!r}, which is not understood here")
    return int(match[1]) * {"hour": 1, "day": 24, "week": 168}[match[2]]

"""Delta tables through ``deltalake``, without a JVM.

The guard is Delta's own: a ``txn`` action of the commit names writer and batch, and delta-rs refuses a concurrent
commit with the same name. The name carries the query's id, because batch numbers of another checkpoint mean something
else. The batch's record is in the commit's info, which Delta keeps as long as its log (30 days by default).
"""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.extra import need_extra
from millstream.pipeline.files import WrittenFile
from millstream.pipeline.locations import Location
from millstream.pipeline.tables.table import CommitRecord, RecordOffsets, incompatible

_RECORD: Final = "millstream.record"
_HISTORY: Final = 1000
_SMALL_BYTES: Final = 32 << 20
_SMALL_FILES: Final = 32
_TARGET_BYTES: Final = 256 << 20


class DeltaTable:
    """A Delta table at a path or address."""

    def __init__(self, location: Location, storage: Mapping[str, str] | None = None) -> None:
        self._delta: Any = need_extra("deltalake", "Delta tables")
        self._location = location
        self._storage = dict(storage or {})
        self._table: Any = None
        self._schema: Any = None

    @property
    def location(self) -> Location:
        return self._location

    def exists(self) -> bool:
        return self._existing() is not None

    def prepare(self, schema: Any) -> Any:
        address = self._location.address
        table = self._existing()
        if table is None:
            self._location.make()
            self._delta.DeltaTable.create(address, schema=schema, mode="ignore", storage_options=self._storage)
            table = self._fresh()
        existing = pa.schema(table.schema().to_arrow())
        new: list[Any] = []
        differences: list[str] = []
        for field in schema:
            if field.name not in existing.names:
                new.append(field)
            elif not _same(existing.field(field.name).type, field.type):
                is_, was = field.type, existing.field(field.name).type
                differences.append(f"column {field.name} is {is_}, in the table {was}")
        if differences:
            raise Rejected(incompatible(f"Delta table {address}", differences))
        if new:
            added = self._delta.Schema.from_arrow(pa.schema(new)).fields
            table.alter.add_columns(added)
            existing = pa.schema(self._fresh().schema().to_arrow())
        self._schema = pa.schema([pa.field(field.name, _plain(field.type)) for field in existing])
        return self._schema

    def last(self, owner: str) -> CommitRecord | None:
        table = self._existing()
        for entry in table.history(_HISTORY) if table is not None else ():
            text = entry.get(_RECORD)
            if text is not None:
                record = msgspec.json.decode(text, type=CommitRecord)
                if record.owner == owner:
                    return record
        return None

    def committed(self, owner: str, query: str) -> int | None:
        table = self._existing()
        return None if table is None else table.transaction_version(_app_id(owner, query))

    def commit(self, record: CommitRecord, files: list[WrittenFile]) -> str:
        properties = self._properties(record)
        now = int(time.time() * 1000)
        actions = [
            self._delta.transaction.AddAction(file.path, file.bytes, {}, now, True, file.stats) for file in files
        ]
        table = self._fresh()
        table.create_write_transaction(actions, "append", self._schema, commit_properties=properties)
        return self.version()

    def scan(self) -> Iterator[Any]:
        return iter(self._fresh().to_pyarrow_dataset().to_batches())

    def remove(self, record: CommitRecord, record_offsets: RecordOffsets) -> None:
        predicate = " OR ".join(
            f"(topic = '{topic}' AND partition = {partition} AND offset IN ({', '.join(map(str, offsets))}))"
            for topic, partitions in record_offsets.items()
            for partition, offsets in partitions.items()
        )  # a topic's name has no quotes
        self._fresh().delete(predicate, commit_properties=self._properties(record))

    def version(self) -> str:
        return str(self._fresh().version())

    def compact(self) -> int:
        table = self._fresh()
        sizes = table.get_add_actions(flatten=True)
        sizes = pa.table(sizes).column("size_bytes").to_pylist()
        if sum(1 for size in sizes if size < _SMALL_BYTES) < _SMALL_FILES:
            return 0
        done = table.optimize.compact(target_size=_TARGET_BYTES)
        return int(done["numFilesRemoved"]) - int(done["numFilesAdded"])

    def expire(self, keep_days: int) -> int:
        # Only files that a commit has removed: one that is not in the log may be about to be committed.
        table, hours = self._fresh(), 24 * keep_days
        old = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False)
        gone = [path for path in old if os.path.exists(os.path.join(self._location.address, path))]
        if gone:
            table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
        return len(gone)

    def _properties(self, record: CommitRecord) -> Any:
        """What makes a commit the one of this record."""
        transaction = self._delta.Transaction(_app_id(record.owner, record.query), record.batch)
        text = msgspec.json.encode(record).decode()
        return self._delta.CommitProperties(custom_metadata={_RECORD: text}, app_transactions=[transaction])

    def _existing(self) -> Any:
        if self._table is None and not self._delta.DeltaTable.is_deltatable(self._location.address, self._storage):
            return None
        return self._fresh()

    def _fresh(self) -> Any:
        if self._table is None:
            self._table = self._delta.DeltaTable(self._location.address, storage_options=self._storage)
        else:
            self._table.update_incremental()
        return self._table


def _app_id(owner: str, query: str) -> str:
    return f"millstream.{owner}.{query}"


def _plain(kind: Any) -> Any:
    """The type without views and large offsets, which Spark's Arrow batches do not have."""
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(kind.field(i).name, _plain(kind.field(i).type)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    return kind


def _same(left: Any, right: Any) -> bool:
    return str(_plain(left)) == str(_plain(right))

"""The files of an Iceberg table, for changes by key: their bounds from manifests, their rows by field id."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from millstream.pipeline.tables.iceberg_columns import as_rows, field_id, table_name
from millstream.pipeline.tables.merging import TableFile


class IcebergFiles:
    """The files of the present snapshot of a table. Rows that delete files take out are not there."""

    def __init__(self, table: Any, schema: Any, key: Sequence[str], *, joinable: bool = False) -> None:
        """``schema`` has the table's columns. ``joinable``: without files that have delete files, or are of an earlier
        partition key.
        """
        self._joinable = joinable
        self._table = table
        self._schema = schema
        self._key = key

    def files(self) -> Sequence[TableFile]:
        spec_id = self._table.spec().spec_id
        return [
            TableFile(task, task.file.file_size_in_bytes, self._bounds(task.file), str(task.file.partition))
            for task in self._table.scan().plan_files()
            if not self._joinable or (not task.delete_files and task.file.spec_id == spec_id)
        ]

    def _bounds(self, file: Any) -> dict[str, tuple[Any, Any]]:
        from pyiceberg.conversions import from_bytes
        from pyiceberg.types import PrimitiveType

        found: dict[str, tuple[Any, Any]] = {}
        lowest, highest = file.lower_bounds or {}, file.upper_bounds or {}
        for name in self._key:
            field = self._table.schema().find_field(field_id(self._schema.field(name)))
            least, greatest = lowest.get(field.field_id), highest.get(field.field_id)
            if least is not None and greatest is not None and isinstance(field.field_type, PrimitiveType):
                kind = self._schema.field(name).type
                found[name] = tuple(_value(from_bytes(field.field_type, one), kind) for one in (least, greatest))  # pyright: ignore[reportArgumentType]
        return found

    def read(self, file: TableFile, columns: Sequence[str]) -> Iterator[Any]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        table = self._table
        wanted = pa.schema([self._schema.field(name) for name in columns])
        names = [table_name(field) for field in wanted]
        scan = ArrowScan(table.metadata, table.io, table.schema().select(*names), AlwaysTrue())
        for batch in scan.to_record_batches([file.own]):
            pairs = zip(names, wanted, strict=True)
            arrays = [as_rows(batch.column(name), field.type) for name, field in pairs]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _value(value: Any, kind: Any) -> Any:
    """A bound as a value of the column: Iceberg counts days and microseconds."""
    if pa.types.is_date(kind):
        return pa.scalar(value, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.scalar(value, pa.int64()).cast(kind)
    if pa.types.is_time(kind):
        return pa.scalar(value, pa.int64()).cast(kind)
    return value

"""Makes an Iceberg table as a pipeline's file declares it: columns, key, partitions, order, properties, in one step."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.model import PartitionPart
from millstream.pipeline.tables.table import Declared

FORMAT: Final = 2
"""The newest format version that is written here."""
_MADE_WITH: Final = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
"""Each commit writes a metadata file, and no other program removes old ones."""


def create(catalog: Any, name: str, schema: Any, key: tuple[str, ...], declared: Declared, shown: str) -> None:
    """Make a table unless it is there.

    Args:
        catalog: an open catalog.
        name: ``namespace.table``.
        schema: the Arrow schema of the columns.
        key: its identifier fields, which are required.
        declared: what else the file says.
        shown: what messages call the table.

    Raises:
        Rejected: Iceberg has no such type; a partition or a sort order names a column that is not there, or that
            cannot be transformed so.
    """
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids  # pyright: ignore[reportPrivateUsage]
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema, assign_fresh_schema_ids
    from pyiceberg.table.sorting import SortOrder

    version = declared.properties.get("format-version", str(FORMAT))
    if version not in map(str, range(1, FORMAT + 1)):
        raise Rejected(f"{shown}: create: format-version {version} is not written here, {FORMAT} is the newest")
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    required = pa.schema([field.with_nullable(field.name not in key) for field in schema])
    try:
        fresh = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(required))
    except Exception as error:  # of several classes
        raise Rejected(f"{shown} cannot have these columns: {error}") from error
    fields = {field.name: field for field in fresh.fields}
    made = Schema(*fresh.fields, identifier_field_ids=[fields[column].field_id for column in key])
    partition = [_partition_field(part, number, fields, shown) for number, part in enumerate(declared.partition)]
    sort = declared.sort or tuple((column, False) for column in key)
    order = [_sort_field(column, descending, fields, shown) for column, descending in sort]
    catalog.create_table_if_not_exists(
        name, made, location=declared.location, partition_spec=PartitionSpec(*partition),
        sort_order=SortOrder(*order), properties={**_MADE_WITH, **declared.properties},
    )  # fmt: skip


def _partition_field(part: PartitionPart, number: int, fields: Mapping[str, Any], shown: str) -> Any:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.transforms import parse_transform

    field = _field(part.column, fields, shown)
    text = f"{part.transform}[{part.argument}]" if part.argument else part.transform
    transform = parse_transform(text)
    if not transform.can_transform(field.field_type):
        raise Rejected(f"{shown}: create.partition: {part.transform} does not take {part.column}, a {field.field_type}")
    name = part.column if part.transform == "identity" else f"{part.column}_{part.transform}"
    return PartitionField(source_id=field.field_id, field_id=1000 + number, transform=transform, name=name)


def _sort_field(column: str, descending: bool, fields: Mapping[str, Any], shown: str) -> Any:
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
    from pyiceberg.transforms import IdentityTransform

    field = _field(column, fields, shown)
    if not field.field_type.is_primitive:
        raise Rejected(f"{shown}: create.sort: column {column} is no simple column")
    return SortField(
        source_id=field.field_id, transform=IdentityTransform(),
        direction=SortDirection.DESC if descending else SortDirection.ASC,
        null_order=NullOrder.NULLS_LAST if descending else NullOrder.NULLS_FIRST,
    )  # fmt: skip


def _field(column: str, fields: Mapping[str, Any], shown: str) -> Any:
    if column not in fields:
        raise Rejected(f"{shown}: create names column {column}, and the rows have {', '.join(fields)}")
    return fields[column]

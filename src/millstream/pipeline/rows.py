"""The columns of a source: the fields of its values, and beside them where each record stands in its topic."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from millstream.spark.declared import Field
from millstream.spark.typed import METADATA, TOPIC_COLUMNS

__all__ = ["DEAD_LETTER_SCHEMA", "METADATA", "TOPIC_COLUMNS", "row_schema"]

DEAD_LETTER_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("error", pa.string()),
        pa.field("column", pa.string()),
    ]
)
"""A record that did not decode, as it was, why, and the column at fault (null: the record as a whole)."""


def row_schema(fields: Sequence[Field]) -> Any:
    """The Arrow schema of decoded records."""
    return pa.schema(
        [pa.field(field.name, field.type) for field in fields] + [pa.field(name, kind) for name, _, kind in METADATA]
    )

"""The columns of a topic in Spark's types, and the check of a query's schema.

Apart from ``columns`` because it needs PySpark, which decoding workers do not.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.errors import Rejected
from millstream.spark.wanted import COLUMN_NAMES, NEVER_NULL, Column

_HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

SPARK_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}


def spark_schema(include_headers: bool) -> StructType:
    """All columns, nullable as in the Kafka connector."""
    names = [name for name in COLUMN_NAMES if include_headers or name != "headers"]
    return StructType([StructField(name, SPARK_TYPES[name]) for name in names])


def wanted_columns(schema: StructType) -> tuple[Column, ...]:
    """The columns of a query's schema.

    Raises:
        Rejected: it names an unknown column, or another type for one.
    """
    return tuple(_wanted(field) for field in schema.fields)


def _wanted(field: StructField) -> Column:
    expected = SPARK_TYPES.get(field.name)
    if expected is None:
        raise Rejected(f"a topic has no column {field.name!r}; its columns are {', '.join(SPARK_TYPES)}")
    if field.dataType != expected:
        given, wanted = field.dataType.simpleString(), expected.simpleString()
        raise Rejected(f"column {field.name!r} is {wanted}, not {given}; read it as that and cast it in the query")
    if not field.nullable and field.name not in NEVER_NULL:
        raise Rejected(f"column {field.name!r} may be null in a topic and cannot be declared NOT NULL")
    return Column(field.name, field.nullable)

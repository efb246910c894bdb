"""The columns of a topic in Spark's types, and the check of a query's schema.

Apart from ``columns`` because it needs PySpark, which decoding workers do not.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
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


_TEXT: Final = (StringType, BinaryType)
_WRITTEN: Final[dict[str, tuple[type[DataType], ...]]] = {
    "key": (*_TEXT, NullType),
    "value": (*_TEXT, NullType),
    "topic": (StringType,),
    "partition": (IntegerType, ShortType, ByteType),
    "timestamp": (TimestampType, TimestampNTZType),
}
"""The types that a written column may have. The first one is named in errors."""


def check_written(schema: StructType) -> None:
    """Refuse columns of types that a record has no place for, before a task fails on them.

    Raises:
        Rejected: a column has another type. The message names the type to cast it to.
    """
    for field in schema.fields:
        kinds = _WRITTEN.get(field.name)
        if kinds is not None and not isinstance(field.dataType, kinds):
            words = "string or binary" if kinds[:2] == _TEXT else SPARK_TYPES[field.name].simpleString()
            raise Rejected(f"column {field.name} is {field.dataType.simpleString()}, not {words}: cast it")
        if field.name == "headers" and not _are_headers(field.dataType):
            raise Rejected(f"column headers is {field.dataType.simpleString()}, not {_HEADERS.simpleString()}: cast it")


def _are_headers(kind: DataType) -> bool:
    pair = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(pair, StructType) or pair.fieldNames() != ["key", "value"]:
        return False
    return isinstance(pair["key"].dataType, StringType) and isinstance(pair["value"].dataType, _TEXT)


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

"""The table behind a declared sink, and the one for its dead letters."""

from typing import Final

from millstream.pipeline.checks import key_of, kind_of, option_text, partition_part, sort_column, target_of
from millstream.pipeline.locations import Location, absolute
from millstream.pipeline.model import Create, Sink
from millstream.pipeline.tables.delta import DeltaTable
from millstream.pipeline.tables.iceberg import IcebergTable, open_catalog
from millstream.pipeline.tables.parquet import ParquetTable
from millstream.pipeline.tables.table import Declared, Table

DEAD_LETTERS_SUFFIX: Final = "_dead_letters"
DELETES_SUFFIX: Final = "_deletes"


def open_table(sink: Sink, directory: str, *, suffix: str = "", key: tuple[str, ...] = ()) -> Table:
    """A table sink's table, or with a suffix one beside it. ``directory`` is the pipeline file's, ``key`` that of a
    table beside it.

    Raises:
        Unavailable: the library for it is not installed.
    """
    kind, target = kind_of(sink), target_of(sink)
    declared = Declared(key, bool(key)) if suffix else _declared(sink)
    if kind == "iceberg":
        return IcebergTable(open_catalog(sink.catalog, directory), target + suffix, declared)
    location = Location(absolute(target, directory) + suffix)
    return DeltaTable(location, declared=declared) if kind == "delta" else ParquetTable(location)


def _declared(sink: Sink) -> Declared:
    """What a checked sink says of its table."""
    create, merges = sink.create or Create(), sink.mode == "upsert"
    return Declared(
        key_of(sink), merges,
        tuple(map(partition_part, create.partition)), tuple(map(sort_column, create.sort)),
        {name: option_text(value) for name, value in create.properties.items()}, create.location,
    )  # fmt: skip


def shown_target(sink: Sink, directory: str) -> str:
    """What a person calls the sink's destination."""
    kind, target = kind_of(sink), target_of(sink)
    return absolute(target, directory) if kind in ("delta", "parquet") else target

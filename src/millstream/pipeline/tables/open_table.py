"""The table behind a declared sink, and the one for its dead letters."""

from typing import Final

from millstream.pipeline.checks import kind_of, target_of
from millstream.pipeline.locations import Location, absolute
from millstream.pipeline.model import Sink
from millstream.pipeline.tables.delta import DeltaTable
from millstream.pipeline.tables.iceberg import IcebergTable, open_catalog
from millstream.pipeline.tables.parquet import ParquetTable
from millstream.pipeline.tables.table import Table

DEAD_LETTERS_SUFFIX: Final = "_dead_letters"


def open_table(sink: Sink, directory: str, *, suffix: str = "") -> Table:
    """A table sink's table; with ``DEAD_LETTERS_SUFFIX`` the one beside it. ``directory`` is the pipeline file's.

    Raises:
        Unavailable: the library for it is not installed.
    """
    kind, target = kind_of(sink), target_of(sink)
    if kind == "iceberg":
        return IcebergTable(open_catalog(sink.catalog, directory), target + suffix)
    location = Location(absolute(target, directory) + suffix)
    return DeltaTable(location) if kind == "delta" else ParquetTable(location)


def shown_target(sink: Sink, directory: str) -> str:
    """What a person calls the sink's destination."""
    kind, target = kind_of(sink), target_of(sink)
    return absolute(target, directory) if kind in ("delta", "parquet") else target

"""Tables are read back through filters by the readers that people have: they find every row, with every type.

``judged_tables`` has the types and values, ``judged_readers`` says what is wrong. The readers here are libraries of
this environment; ``test_pipeline_read_back_engines`` has DuckDB and Spark, and all filters.
"""

import math
import warnings

import pyarrow as pa
import pytest
from judged_readers import ArrowReader, DataFusionReader, PolarsReader, PyicebergReader, judge
from judged_tables import GROUPS, ID, PARTS, filters, judged, judged_parts
from table_support import Writer

from millstream.pipeline import files
from millstream.pipeline.tables import iceberg, merging

READERS = (ArrowReader(), DataFusionReader(), PolarsReader(), PyicebergReader())
EDGES = {f"d{precision}" for precision in (1, 9, 10, 18, 19, 37, 38)}
"""Precisions at which a decimal's form in files changes."""


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
@pytest.mark.parametrize("group", list(GROUPS))
def test_libraries_find_every_row_through_a_filter_on_each_column(tmp_path, group, kind):
    table = judged(tmp_path, group, kind)
    wrong = []
    for reader in READERS:
        if kind in reader.kinds:
            columns = [column for column in GROUPS[group] if group != "decimals" or column in EDGES]
            wrong += judge(reader, table, filters_on(group, columns), [ID, *GROUPS[group]])
    assert not wrong


def filters_on(group, columns):
    return [one for column in columns for one in filters(group, column, everything=False)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("group", ["floats", "long"])
def test_bounds_of_a_file_are_those_of_all_its_row_groups(tmp_path, monkeypatch, group, kind):
    monkeypatch.setattr(files, "GROUP_BYTES", 1)
    table, wrong = judged(tmp_path, group, kind, one_file=True), []
    for reader in READERS:
        if kind in reader.kinds:
            wrong += judge(reader, table, filters_on(group, GROUPS[group]), [ID, *GROUPS[group]])
    assert not wrong


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("group", list(GROUPS))
def test_every_reader_sees_the_rows_that_it_saw_before_files_were_joined(tmp_path, monkeypatch, group, kind):
    for module in (merging, iceberg):
        monkeypatch.setattr(module, "_SMALL_FILES", 2)
    table, names = judged(tmp_path, group, kind), [ID, *GROUPS[group]]
    readers = [reader for reader in READERS if kind in reader.kinds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = [reader.rows(table, table.ours, names) for reader in readers]
        assert Writer(tmp_path / "ours", kind).table.compact() > 0
        for reader, rows in zip(readers, before, strict=True):
            assert reader.rows(table, table.ours, names) == rows, reader.name


@pytest.mark.parametrize("column", PARTS)
def test_libraries_find_every_row_of_a_partitioned_table(tmp_path, column):
    table = judged_parts(tmp_path, column)
    wrong = []
    for reader in READERS:
        if "delta" in reader.kinds:
            wrong += judge(reader, table, filters_on(column, [column, "n"]), [ID, column, "n"])
    assert not wrong


def test_a_file_of_nothing_but_nan_does_not_count_them(tmp_path):
    """Iceberg's Java library would skip it for each comparison, and in Spark NaN is greater than every number."""
    writer = Writer(tmp_path, "iceberg").open(pa.schema([("x", pa.float64())]))
    for values in ([math.nan, math.nan], [math.nan, 1.0]):
        writer.append([{"x": value} for value in values])
    files = writer.iceberg().inspect.files().to_pylist()
    assert sorted(file["nan_value_counts"] or [] for file in files) == [[], [(1, 1)]]

"""DuckDB and Spark find every row of a pipeline's tables through filters; the libraries do, through all filters.

DuckDB 1.4.4 and Spark 4.1 run in environments of their own, fetched once into ``~/.cache/millstream``: DuckDB with the
extensions for Delta and Iceberg that are packages, Spark with their jars, which there are for no later Spark.
"""

import os
import sys
from pathlib import Path

import pytest
from judged_readers import (
    ArrowReader,
    DataFusionReader,
    DuckDbReader,
    PolarsReader,
    PyicebergReader,
    SparkReader,
    judge,
)
from judged_tables import GROUPS, ID, PARTS, TRANSFORMS, filters, judged, judged_parts, judged_transform

from conformance import tools

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
DUCKDB = "1.4.4"
EXTENSIONS = ("icu", "json", "avro", "parquet", "delta", "iceberg")
SPARK = "4.1.1"
JARS = (
    "io.delta:delta-spark_4.1_2.13:4.1.0",
    "io.delta:delta-storage:4.1.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"
KINDS = ["delta", "iceberg", "parquet"]
EDGES = {f"d{precision}" for precision in (1, 9, 10, 18, 19, 37, 38)}
"""Precisions at which a decimal's form in files changes; Spark takes a second for each query."""


def fetched(name, *packages):
    """A directory with these packages."""
    uv = Path(sys.executable).with_name("uv")
    install = [str(uv), "pip", "install", "--quiet", "--python", sys.executable, *packages]
    return tools.cached(name, lambda target: tools.run([*install, "--target", str(target)], target))


def environment(packages, **more):
    return {**os.environ, "PYTHONPATH": str(packages), **more}


@pytest.fixture(scope="module")
def duckdb():
    names = [f"duckdb-extension-{name}=={DUCKDB}" for name in EXTENSIONS]
    packages = fetched(f"reader-duckdb-{DUCKDB}", f"duckdb=={DUCKDB}", *names)
    reader = DuckDbReader([sys.executable, str(HERE / "reader_duckdb.py")], environment(packages))
    yield reader
    reader.close()


def jars(target):
    tools.need("mvn", "java")
    for jar in JARS:
        tools.run(["mvn", "-q", "-B", COPY, f"-Dartifact={jar}", f"-DoutputDirectory={target}"], target)


@pytest.fixture(scope="module")
def spark():
    packages, place = fetched(f"reader-spark-{SPARK}", f"pyspark=={SPARK}"), tools.cached(f"reader-jars-{SPARK}", jars)
    command = [sys.executable, str(HERE / "reader_spark.py"), *map(str, sorted(place.glob("*.jar")))]
    reader = SparkReader(command, environment(packages))
    yield reader
    reader.close()


def wrong(readers, place, group, kind, *, everything=True):
    table = judged(place, group, kind)
    found = []
    for reader in readers:
        if kind in reader.kinds:
            names = [ID, *GROUPS[group]]
            for column in GROUPS[group]:
                if reader.name == "Spark" and group == "decimals" and column not in EDGES:
                    continue
                found += judge(reader, table, filters(group, column, everything=everything), names)
                names = []
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", list(GROUPS))
def test_duckdb_finds_every_row_through_every_filter(duckdb, tmp_path, group, kind):
    assert not wrong([duckdb], tmp_path, group, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", list(GROUPS))
def test_spark_finds_every_row_through_every_filter(spark, tmp_path, group, kind):
    assert not wrong([spark], tmp_path, group, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", list(GROUPS))
def test_libraries_find_every_row_through_every_filter(tmp_path, group, kind):
    readers = [ArrowReader(), DataFusionReader(), PolarsReader(), PyicebergReader()]
    assert not wrong(readers, tmp_path, group, kind)


@pytest.mark.parametrize("column", PARTS)
def test_every_row_of_a_partitioned_table_is_found_through_every_filter(duckdb, spark, tmp_path, column):
    table = judged_parts(tmp_path, column)
    found = []
    for reader in (duckdb, spark, ArrowReader(), DataFusionReader(), PolarsReader()):
        for name in (column, "n"):
            found += judge(reader, table, filters(column, name, everything=True), [ID, column, "n"])
    assert not found


@pytest.mark.parametrize(("column", "transform"), TRANSFORMS)
def test_every_row_of_a_partitioned_iceberg_table_is_found_as_in_one_that_spark_wrote(
    duckdb, spark, tmp_path, column, transform
):
    table, found = judged_transform(tmp_path, column, transform, spark), []
    for reader in (duckdb, spark, PyicebergReader(), PolarsReader()):
        names = [ID, column]
        for one in filters(column, column, everything=True):
            # One by one: some readers fail at the year 9999 of any table.
            found += [wrong for wrong in judge(reader, table, [one], names) if "of any table" not in wrong]
            names = []
    assert not found

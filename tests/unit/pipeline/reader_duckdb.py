"""Run by a Python that has DuckDB 1.4.4: answers statements, one a line of JSON, from its packaged extensions."""

import importlib
import json
import sys
from pathlib import Path

import duckdb

EXTENSIONS = ("icu", "json", "avro", "parquet", "delta", "iceberg")


def main():
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    for name in EXTENSIONS:
        package = Path(importlib.import_module(f"duckdb_extension_{name}").__file__).parent
        (file,) = package.glob(f"extensions/*/{name}.duckdb_extension")
        connection.execute(f"load '{file}'")
    connection.execute("set timezone = 'UTC'")
    for line in sys.stdin:
        try:
            answer = {"rows": connection.execute(json.loads(line)).fetchall()}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


main()

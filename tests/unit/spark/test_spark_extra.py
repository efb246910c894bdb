"""What a user reads whose installation lacks a package that Spark's part needs."""

import subprocess
import sys

import pytest

SCHEMAS = "from millstream.spark.schemas import RegistrySchemas"
VALUES = "from millstream.spark.registry_values import latest_schema; latest_schema('http://h', 's')"
READ = "MillstreamDataSource({'kafka.bootstrap.servers': 'h:1', 'subscribe': 't'}).reader(None)"


@pytest.mark.parametrize(
    ("missing", "call", "needs", "extra"),
    [
        ("pyspark", "from millstream import spark; spark.session()", "millstream.spark needs", "spark"),
        (
            "numba",
            f"from millstream.spark.source import MillstreamDataSource; {READ}",
            "millstream.spark needs",
            "spark",
        ),
        ("pyspark", "from millstream.pipeline import run", "pipelines need", "pipeline"),
        ("fastavro", SCHEMAS, "millstream.spark.schemas needs", "schemas,spark"),
        ("fastavro", VALUES, "records with schema ids need", "pipeline,schemas"),
    ],
)
def test_a_package_that_is_not_installed_is_told_in_one_sentence_with_the_remedy(missing, call, needs, extra):
    absent = f"import sys; sys.modules[{missing!r}] = None; "  # an import of it fails, and it has no spec
    done = subprocess.run([sys.executable, "-c", absent + call], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(
        f"{needs} {missing}, which is not installed: pip install 'PATH[{extra}]', PATH being a checkout or the wheel"
    )

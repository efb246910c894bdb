"""The tool that runs Spark's tests with several versions imports the one that it names, and counts what pytest says."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import spark_versions


def test_a_version_stands_before_the_environments_own_and_before_another_spark(tmp_path, monkeypatch):
    (tmp_path / "pyspark.py").write_text("__version__ = '4.9.9'\n")
    monkeypatch.setenv("SPARK_HOME", "/another/spark")
    monkeypatch.setenv("PYTHONPATH", "/another/path")
    env = spark_versions.environment(tmp_path)
    assert env["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), "/another/path"]
    assert "SPARK_HOME" not in env
    assert spark_versions.imported(env) == "4.9.9"


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("..F\n1 failed, 2 passed, 1 skipped in 3.00s\n", "1 failed, 2 passed, 1 skipped"),
        ("2 errors in 1.00s\n", "2 errors"),
        ("usage: pytest\n", "no tests ran"),
    ],
)
def test_counts_are_those_of_the_last_line_that_has_some(output, counts):
    assert spark_versions.counted(output) == counts


def test_an_installation_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def failing(*_, **__):
        raise OSError("seeded")

    monkeypatch.setattr(spark_versions.subprocess, "run", failing)
    with pytest.raises(OSError, match="seeded"):
        spark_versions.installed("4.9.9", tmp_path)
    assert list(tmp_path.iterdir()) == []

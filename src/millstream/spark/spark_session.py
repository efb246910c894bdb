"""A SparkSession set up for Millstream.

``session()`` finds a Java and starts Spark with the settings that make a Python source fast. It overrides nothing that
the user has set: its own arguments, ``spark-defaults.conf``, a ``spark-submit`` command line and a running session all
win. For a cluster, or a session created elsewhere, put ``RECOMMENDED`` into its configuration; without it everything
works, but slower.
"""

import contextlib
import os
import sys
from collections.abc import Generator, Mapping
from typing import Any, Final

from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

from millstream.spark.class_archive import archive_options
from millstream.spark.java import find_java_home

RECOMMENDED: Final[Mapping[str, str]] = {
    # Between the JVM and its Python workers. Measured: up to a third more throughput, a quarter less per task.
    "spark.python.unix.domain.socket.enabled": "true",
    # A new worker costs half a second per task.
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
}

_SUBMIT_OPTIONS: Final = "SPARK_SUBMIT_OPTS"

_LOCAL: Final[Mapping[str, str]] = {
    # A laptop's own name may not resolve, and no other machine needs to reach this driver.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def session(
    name: str = "millstream", *, cores: int | None = None, conf: Mapping[str, Any] | None = None
) -> SparkSession:
    """The running session, or a new one.

    Args:
        name: name of the application on Spark's pages.
        cores: run locally on this many cores; None leaves the master to Spark's configuration, else all local cores.
        conf: Spark settings that override ours.

    Raises:
        Unavailable: no usable Java.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    java_home = os.environ["JAVA_HOME"] = find_java_home()
    # Workers run this Python, not the "python3" that is first on the search path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = {key: str(value) for key, value in (conf or {}).items()}
    if cores is not None:
        chosen.setdefault("spark.master", f"local[{cores}]")
    # The virtual machine starts with the user's own settings, some of which (its memory) count only then ...
    launched = SparkConf(loadDefaults=False)
    for key, value in chosen.items():
        launched.set(key, value)
    with submit_options(archive_options(java_home)):
        SparkContext._ensure_initialized(conf=launched)  # pyright: ignore[reportPrivateUsage]
    # ... and then also knows those of spark-defaults.conf, which override ours.
    merged = SparkConf()
    for key, value in {**chosen, "spark.app.name": name}.items():
        if key in chosen or not merged.contains(key):
            merged.set(key, value)
    merged.setIfMissing("spark.master", "local[*]")
    ours = {**RECOMMENDED, **(_LOCAL if merged.get("spark.master", "").startswith("local") else {})}
    for key, value in ours.items():
        merged.setIfMissing(key, value)
    return SparkSession.builder.config(conf=merged).getOrCreate()


@contextlib.contextmanager
def submit_options(options: str) -> Generator[None, None, None]:
    """Options of the virtual machine that starts at the same time; those that the user has set come later and win."""
    held = os.environ.get(_SUBMIT_OPTIONS)
    if not options:
        yield
        return
    os.environ[_SUBMIT_OPTIONS] = f"{options} {held or ''}".strip()
    try:
        yield
    finally:
        if held is None:
            del os.environ[_SUBMIT_OPTIONS]
        else:
            os.environ[_SUBMIT_OPTIONS] = held

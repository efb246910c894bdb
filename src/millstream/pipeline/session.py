"""The Spark session of a pipeline: the settings of ``millstream.spark.session``, and what the declaration adds."""

import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from millstream import spark as ms
from millstream.errors import Unavailable
from millstream.pipeline.checks import option_text
from millstream.pipeline.model import Pipeline
from millstream.pipeline.query import register

_GAVE_UP: Final = "stopped SparkContext"
"""What Spark says of a session whose master did not answer: the context has ended by itself."""


def pipeline_session(pipeline: Pipeline) -> SparkSession:
    """The running session, or a new one; knows the pipeline's own formats.

    Raises:
        Unavailable: no usable Java, or the master does not answer.
    """
    spark = _started(f"millstream {pipeline.pipeline}", pipeline.spark)
    register(spark)
    return spark


def _started(name: str, settings: Mapping[str, str | int | bool]) -> SparkSession:
    """The running session, or a new one with these settings."""
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }
    declared = {name: option_text(value) for name, value in settings.items()}
    try:
        spark = ms.session(name, conf={**defaults, **declared})
    except Exception as error:
        if _GAVE_UP not in str(error):
            raise
        raise Unavailable(
            f"the Spark master {declared.get('spark.master')} does not answer; start it, or correct spark.master"
        ) from error
    return spark


class SharedSession:
    """One application of Spark for many pipelines: each has a session of its own, with its own views, in it.

    Threads may ask at the same time; the first starts the application. It is not started again when its virtual
    machine has ended: ``alive`` tells, and the owner of the process ends it.
    """

    def __init__(self, name: str, settings: Mapping[str, str | int | bool]) -> None:
        self._name = name
        self._settings = settings
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    def __call__(self, pipeline: Pipeline) -> SparkSession:
        """A session for one pipeline; raises what ``pipeline_session`` does."""
        _ = pipeline
        with self._lock:
            if self._spark is None:
                self._spark = _started(self._name, self._settings)  # a format registered in it could not be, below
            spark = self._spark.newSession()
        register(spark)
        return spark

    def alive(self) -> bool:
        """Whether the application can run queries, or has not been started."""
        spark = self._spark
        if spark is None:
            return True
        context: Any = spark.sparkContext
        try:
            return not context._jsc.sc().isStopped()
        except Exception:  # noqa: BLE001 (the virtual machine has ended, which shows in several kinds of errors)
            return False

    def stop(self) -> None:
        """End the application."""
        with self._lock:
            if self._spark is not None and self.alive():
                self._spark.stop()
            self._spark = None

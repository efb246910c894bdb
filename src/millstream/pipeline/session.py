"""The Spark session of a pipeline: the settings of ``millstream.spark.session``, and what the declaration adds."""

import os
from typing import Final

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
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }
    declared = {name: option_text(value) for name, value in pipeline.spark.items()}
    try:
        spark = ms.session(f"millstream {pipeline.pipeline}", conf={**defaults, **declared})
    except Exception as error:
        if _GAVE_UP not in str(error):
            raise
        raise Unavailable(
            f"the Spark master {declared.get('spark.master')} does not answer; start it, or correct spark.master"
        ) from error
    register(spark)
    return spark

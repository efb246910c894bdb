"""The Spark session of a pipeline: the settings of ``millstream.spark.session``, and what the declaration adds."""

import os

from pyspark.sql import SparkSession

from millstream import spark as ms
from millstream.pipeline.checks import option_text
from millstream.pipeline.model import Pipeline
from millstream.pipeline.query import register


def pipeline_session(pipeline: Pipeline) -> SparkSession:
    """The running session, or a new one; knows the pipeline's own formats.

    Raises:
        Unavailable: no usable Java.
    """
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }
    declared = {name: option_text(value) for name, value in pipeline.spark.items()}
    spark = ms.session(f"millstream {pipeline.pipeline}", conf={**defaults, **declared})
    register(spark)
    return spark

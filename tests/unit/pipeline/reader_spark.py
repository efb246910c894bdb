"""Run by a Python that has Spark 4.1: answers statements, one a line of JSON, with the jars of Delta and of Iceberg.

Arguments are the jars. A statement that is an object makes an Iceberg catalog known: its name and its properties.
"""

import json
import os
import sys

from pyspark.sql import SparkSession

DELTA = "io.delta.sql.DeltaSparkSessionExtension"
ICEBERG = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
SETTINGS = {
    "spark.jars": ",".join(sys.argv[1:]),
    "spark.sql.extensions": f"{DELTA},{ICEBERG}",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    # Queries are small and many: what is compiled for each of them would take longer than it saves.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def answer(spark, statement):
    return [list(row) for row in spark.sql(statement).collect()]


def with_catalog(spark, statement):
    """A session in which the catalog's name means this one: rows of a catalog's database carry its name."""
    session = spark.newSession()
    for name, value in statement["properties"].items():
        session.conf.set(f"spark.sql.catalog.{statement['catalog']}{name}", value)
    return session


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints is no answer
    builder = SparkSession.builder.master("local[1]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        statement = json.loads(line)
        try:
            if isinstance(statement, dict):
                spark, statement = with_catalog(spark, statement), "select 1"
            found = {"rows": answer(spark, statement)}
        except Exception as error:  # noqa: BLE001 (of any kind: the test tells it)
            found = {"error": str(error)[:2000]}
        print(json.dumps(found), file=out, flush=True)
    spark.stop()


main()

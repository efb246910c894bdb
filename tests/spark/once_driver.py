"""A streaming query that copies one topic to another, for ``test_spark_kills.py``, which kills it.

python once_driver.py '{"bootstrap": …, "source": …, "target": …, "place": …, "limit": …, "sink": {…}, …}'
"""

import json
import sys

from class_archive import BRIEF

from millstream import spark as ms


def main() -> None:
    given = json.loads(sys.argv[1])
    conf = {
        "spark.master": given["master"],
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": BRIEF,
        "spark.driver.extraJavaOptions": BRIEF,
        "spark.task.maxFailures": "8",
        "spark.sql.shuffle.partitions": "3",
    }
    spark = ms.session("killed", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    reads = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": given["source"]}
    reads |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(given["limit"])}
    writes = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["target"], **given["sink"]}
    query = (
        spark.readStream.format("millstream")
        .options(**reads)
        .load()
        .select("key", "value")
        .writeStream.format("millstream")
        .options(**writes, checkpointLocation=f"{given['place']}/checkpoint")
        .trigger(**({"availableNow": True} if given["once"] else {"processingTime": "0 seconds"}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()

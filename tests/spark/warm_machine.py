"""A session of Spark for drivers that come and go (``warm_drivers``): says where it is, then ends their queries."""

import json
import os
import sys

from class_archive import BRIEF

from millstream import spark as ms

CONF = {
    "spark.driver.extraJavaOptions": BRIEF,
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def main():
    answers = os.dup(1)  # Spark's virtual machine writes to standard output as it likes
    os.dup2(2, 1)
    spark = ms.session("drivers", cores=2, conf=CONF)
    reached = spark.sparkContext._gateway.gateway_parameters
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    where = {"port": reached.port, "secret": reached.auth_token, "pid": pid}
    os.write(answers, json.dumps(where).encode() + b"\n")
    for _ in sys.stdin:
        for query in spark.streams.active:
            query.stop()
        os.write(answers, b"ended\n")
    spark.stop()


if __name__ == "__main__":
    main()

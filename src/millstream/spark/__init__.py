"""Topics as Spark tables and streams.

::

    from millstream import spark as ms

    spark = ms.session("orders", cores=2)
    orders = spark.read.format("millstream").options(servers="host:9092", subscribe="orders").load()

History is read from segment files, in parallel and without the broker; only the tail comes from the broker.
``docs/spark.md`` lists the options, which have the names of Spark's Kafka connector. This package imports nothing of
the broker.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.spark.event_source import event_data
    from millstream.spark.options import option_table
    from millstream.spark.spark_session import RECOMMENDED, session
    from millstream.spark.stats import ReadStats, read_stats

__all__ = ["RECOMMENDED", "ReadStats", "event_data", "option_table", "read_stats", "session"]

_HOMES = {
    "RECOMMENDED": "spark_session",
    "ReadStats": "stats",
    "event_data": "event_source",
    "option_table": "options",
    "read_stats": "stats",
    "session": "spark_session",
}


def __getattr__(name: str) -> Any:
    """Import on first use: a worker that only decodes needs neither the session nor all of PySpark."""
    if name in _HOMES:
        import importlib

        try:
            return getattr(importlib.import_module(f"millstream.spark.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package == "millstream":
                raise
            from millstream.errors import how_to_install

            sentence = f"millstream.spark needs {package}, which is not installed: {how_to_install('spark')}"
            raise ModuleNotFoundError(sentence, name=error.name) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

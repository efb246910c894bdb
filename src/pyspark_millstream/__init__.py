"""Where Spark looks for ``format("millstream")``.

Spark imports ``pyspark_<format>`` and takes its ``DefaultSource``, so no registration is needed, neither in Python nor
in SQL. Everything else is in ``millstream.spark``.
"""

from millstream.spark.source import MillstreamDataSource


class DefaultSource(MillstreamDataSource):
    """``format("millstream")``."""


__all__ = ["DefaultSource"]

"""Functions that a query calls, without Spark: one that Spark does not have is a problem with its place.

``spark_functions.txt`` has the names of Spark's own, from its class files (``tools/spark_functions.py``). A call with a
qualified name is of a catalog, which only Spark knows. A pipeline may bring functions of its own: its Python function
can register some, and so can extensions and jars that its ``spark:`` names; nothing is said of names then.
"""

import functools
import importlib.resources
from typing import Any, Final

from millstream.pipeline.extra import need_extra
from millstream.pipeline.model import Pipeline

WRITTEN: Final = "written"
"""Where sqlglot keeps the name that a function was called by (``Dialect.ORIGINAL_NAME_META_KEY``)."""
_BRINGS: Final = ("spark.sql.extensions", "spark.sql.catalog", "spark.jars", "spark.submit.pyFiles", "spark.plugins")


@functools.cache
def builtin() -> frozenset[str]:
    """Names of Spark's functions, in lower case."""
    return frozenset((importlib.resources.files("millstream.pipeline") / "spark_functions.txt").read_text().split())


def brings_functions(pipeline: Pipeline) -> bool:
    """Whether queries of a pipeline may call functions that are not Spark's."""
    has_code = pipeline.transform is not None and pipeline.transform.python is not None
    return has_code or any(name.startswith(_BRINGS) for name in pipeline.spark)


def unknown_function(query: Any) -> tuple[str, Any] | None:
    """A function that a query, a tree of sqlglot's, calls and Spark does not have, and its place; None without one."""
    exp = need_extra("sqlglot.expressions", "queries of pipelines")
    for call in query.find_all(exp.Func):
        name = call.name if isinstance(call, exp.Anonymous) else call.meta.get(WRITTEN)
        if name is not None and not isinstance(call.parent, exp.Dot) and name.lower() not in builtin():
            return name, call.meta
    return None

"""Functions that a query calls, without Spark: one that Spark does not have is a problem with its place.

``spark_functions.txt`` has the names of Spark's own, from its class files (``tools/spark_functions.py``). A call with a
qualified name is of a catalog, which only Spark knows. A pipeline may bring functions of its own: its Python function
can register some, and so can extensions and jars that its ``spark:`` names; nothing is said of names then.
"""

import difflib
import functools
import importlib.resources
from typing import Any, Final

from millstream.errors import Rejected
from millstream.pipeline.extra import need_extra
from millstream.pipeline.model import Pipeline

WRITTEN: Final = "written"
"""Where sqlglot keeps the name that a function was called by (``Dialect.ORIGINAL_NAME_META_KEY``)."""
_BRINGS: Final = ("spark.sql.extensions", "spark.sql.catalog", "spark.jars", "spark.submit.pyFiles", "spark.plugins")


class UnknownFunction(Rejected):
    """Spark has no such function. ``line`` and ``column`` are its place, from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@functools.cache
def builtin() -> frozenset[str]:
    """Names of Spark's functions, in lower case."""
    return frozenset((importlib.resources.files("millstream.pipeline") / "spark_functions.txt").read_text().split())


def brings_functions(pipeline: Pipeline) -> bool:
    """Whether queries of a pipeline may call functions that are not Spark's."""
    has_code = pipeline.transform is not None and pipeline.transform.python is not None
    return has_code or any(name.startswith(_BRINGS) for name in pipeline.spark)


def require_functions(query: Any) -> None:
    """Refuse a query, a tree of sqlglot's, that calls a function that Spark does not have.

    Raises:
        UnknownFunction: it does.
    """
    exp = need_extra("sqlglot.expressions", "queries of pipelines")
    for call in query.find_all(exp.Func):
        name = call.name if isinstance(call, exp.Anonymous) else call.meta.get(WRITTEN)
        if name is None or isinstance(call.parent, exp.Dot) or name.lower() in builtin():
            continue
        near = difflib.get_close_matches(name.lower(), builtin(), 1)
        meant = f", did you mean {near[0]}?" if near else ""
        place = call.meta
        column = max(1, place.get("col", 0) - len(name) + 1)
        raise UnknownFunction(f"Spark has no function {name}{meant}", place.get("line", 0), column)

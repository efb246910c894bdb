"""What Spark makes of a query before it runs: whether its rows come from single records, and whether a batch that is
repeated has the same ones. PySpark has no public names for plans; ``_JavaFrame`` has those of Java.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from millstream.config.yaml_file import Path
from millstream.errors import Rejected
from millstream.pipeline.keys import require_key
from millstream.pipeline.query_names import QueryProblem
from millstream.pipeline.row_letters import Origins

_TOGETHER: Final = re.compile(
    r"^[\s:+|~-]*(Aggregate|Deduplicate\w*|Distinct|Window|WindowGroupLimit|\w*WithState\w*|TransformWithState\w*)\b",
    re.MULTILINE,
)
"""Steps of a plan whose rows come from several records. Spark marks those of a stream with a tilde."""
_ROW_BY_ROW: Final = re.compile(
    r"^[\s:+|~-]*(Project|Filter|Sort|Repartition\w*|RebalancePartitions|EventTimeWatermark|BatchEvalPython|ArrowEvalPython"
    r"|\w*Relation\w*|LogicalRDD|InMemoryRelation)\b"
)
"""Steps of a plan that make no second row of a record. Other steps are taken for such as may."""


class _JavaFrame:
    """A DataFrame as Java has it."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame: Any = frame._jdf  # pyright: ignore[reportPrivateUsage]
        self._session: Any = frame.sparkSession._jsparkSession  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    def optimised(self) -> str:
        """The optimised plan. A stream that has not been started has none of its own (``explain`` refuses it), so the
        optimiser is called on what the analysis gave.
        """
        optimiser = self._session.sessionState().optimizer()
        return str(optimiser.execute(self._frame.queryExecution().analyzed()).toString()).rstrip()

    def is_deterministic(self) -> bool:
        return bool(self._frame.queryExecution().analyzed().deterministic())


def origins_of(frame: DataFrame) -> Origins:
    """What the rows of a frame tell about their records."""
    plan = optimised_plan(frame)
    named = {"_topic", "_partition", "_offset"} <= set(frame.columns) and _TOGETHER.search(plan) is None
    return Origins(named, all(_ROW_BY_ROW.match(line) for line in plan.splitlines() if line.strip()))


def puts_together(frame: DataFrame) -> bool:
    """Whether rows of a frame come from several records."""
    return _TOGETHER.search(optimised_plan(frame)) is not None


def require_single_rows(frame: DataFrame, verb: str) -> DataFrame:
    """The frame itself, if each of its rows comes from one record of the source.

    Raises:
        Rejected: the query puts records together.
    """
    found = _TOGETHER.search(optimised_plan(frame))
    if found is not None:
        raise Rejected(
            f"the query puts records together ({found[1]}), so single ones cannot be {verb} into its result; run a new "
            "pipeline from the beginning into a new table"
        )
    return frame


def require_mergeable(frame: DataFrame | None, schema: Any, key: Sequence[str], path: Path) -> None:
    """Refuse rows that have no such key, or that come from several records.

    Args:
        frame: of a query, None without one.
        schema: of the rows.
        key: columns that tell rows apart.
        path: the query's text.

    Raises:
        QueryProblem: they do.
    """
    try:
        require_key(schema, key)
        if frame is not None:
            require_single_rows(frame, "merged")
    except Rejected as error:
        raise QueryProblem(error.message, path) from None


def require_repeatable(frame: DataFrame, path: Path) -> None:
    """Refuse a query that Spark holds for not deterministic: ``rand()``, ``uuid()``, a function declared so.

    Raises:
        QueryProblem: it is one.
    """
    if not _JavaFrame(frame).is_deterministic():
        raise QueryProblem(
            "the query is not deterministic (rand(), uuid() or the like), and a batch that is repeated would have "
            "other rows: compute such a column from the record, or say delivery: at-least-once",
            path,
        )


def optimised_plan(frame: DataFrame) -> str:
    """Spark's optimised plan."""
    return _JavaFrame(frame).optimised()

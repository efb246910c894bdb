"""Rows that fit a table, and why the others do not.

A row fits if each value has its column's type, each value that the table's owner requires is there, and its partition
has a name. Whether a row fits depends on that row alone: one that does not never ends its batch.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.layout import conform, require_partitions
from millstream.spark.fitting import Fault, fault_of, isolated


def rows_that_fit(rows: Any, table: Any) -> tuple[Any, dict[int, Fault]]:
    """The rows of a record batch that fit, in the table's columns, and the faults of the others by their index."""
    faults: dict[int, Fault] = {}
    try:
        return _fit(rows, table), faults
    except Exception as error:  # noqa: BLE001 (of any kind: the faulty rows are found below)
        if rows.num_rows == 1:
            return _fit(rows.slice(0, 0), table), {0: _fault(rows, table, error)}

    def part(start: int, end: int) -> Any:
        length = end - start
        try:
            _fit(rows.slice(start, length), table)
        except Exception as error:
            if length > 1:
                raise
            faults[start] = _fault(rows.slice(start, 1), table, error)
            raise
        return pa.nulls(length)

    isolated(rows.num_rows, part, pa.nulls(1), faults)
    good = np.ones(rows.num_rows, dtype=bool)
    good[list(faults)] = False
    return _fit(rows.filter(pa.array(good)), table), faults


def _fit(rows: Any, table: Any) -> Any:
    found = conform(rows, table)
    require_partitions(found, table)
    return found


def _fault(row: Any, table: Any, error: Exception) -> Fault:
    """The fault of a row of which it is known that it does not fit."""
    for field in table:
        try:
            conform(row, pa.schema([field]))
        except Rejected as own:
            return Fault(own.message, field.name)
        except Exception as own:  # noqa: BLE001 (the one that is looked for)
            return fault_of(own, field.name)
    return fault_of(error)

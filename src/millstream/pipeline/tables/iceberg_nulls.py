"""Null lists and maps of Iceberg tables stay null when rows are read.

pyiceberg 0.12 brings the columns of a file to those of the table. On the way it makes an empty list of a null one whose
elements are structures, and an empty map of a null one whose values are. Rows that upkeep and merges write again would
then be others for every reader. ``keep_nulls`` mends its visitor for this process, before anything is read.
"""

import importlib
from typing import Any

import numpy as np
import pyarrow as pa


def keep_nulls() -> None:
    """Let pyiceberg keep nulls; does nothing the second time."""
    library: Any = importlib.import_module("pyiceberg.io.pyarrow")
    visitor = library.ArrowProjectionVisitor
    if getattr(visitor, "keeps_nulls", False):
        return

    class KeepsNulls(visitor):
        keeps_nulls = True

        def list(self, list_type: Any, list_array: Any, value_array: Any) -> Any:
            return _with_nulls(super().list(list_type, list_array, value_array), list_array)

        def map(self, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
            return _with_nulls(super().map(map_type, map_array, key_result, value_result), map_array)

    library.ArrowProjectionVisitor = KeepsNulls


def _with_nulls(found: Any, array: Any) -> Any:
    """An array with null where another one has it."""
    if found is None or found.null_count == array.null_count:
        return found
    places = pa.array(np.arange(len(found)), mask=array.is_null().to_numpy(zero_copy_only=False))
    return found.take(places)

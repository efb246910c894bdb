"""A metric that nothing counts would say zero for ever."""

from pathlib import Path

import millstream
from millstream.telemetry.table import METRICS

FROM_ARENAS = "memory_"
"""Filled in when the page is rendered."""


def test_every_declared_metric_is_bound_somewhere():
    source = Path(millstream.__file__).parent
    table = source / "telemetry" / "table.py"
    text = "".join(path.read_text() for path in source.rglob("*.py") if path != table)
    silent = [m.name for m in METRICS if not m.name.startswith(FROM_ARENAS) and f'"{m.name}"' not in text]
    assert silent == []

"""The description of a Spark task: offsets to read, files that may hold them, and settings. A value that travels to a
worker.
"""

import msgspec

from millstream.client.security import PLAIN, Security
from millstream.spark.planner import ReadRange
from millstream.spark.wanted import Wanted


class ReadSettings(msgspec.Struct, frozen=True):
    """The settings that all tasks of a query share."""

    bootstrap: str
    client_id: str
    timeout_s: float
    fetch_bytes: int
    wanted: Wanted
    fail_on_data_loss: bool
    segments_required: bool
    stats_dir: str | None
    security: Security = PLAIN


class ReadTask(msgspec.Struct, frozen=True):
    """One task of one scan. ``scan`` and ``index`` identify it, also when it is run again."""

    settings: ReadSettings
    scan: str
    index: int
    ranges: tuple[ReadRange, ...]

"""What a Spark task is told: offsets to read, files that may hold them, and how. A value that travels to a worker."""

import msgspec

from millstream.spark.planner import ReadRange
from millstream.spark.wanted import Wanted


class ReadSettings(msgspec.Struct, frozen=True):
    """What all tasks of a query share."""

    bootstrap: str
    client_id: str
    timeout_s: float
    fetch_bytes: int
    wanted: Wanted
    fail_on_data_loss: bool
    segments_required: bool
    stats_dir: str | None


class ReadTask(msgspec.Struct, frozen=True):
    """One task of one scan; ``scan`` and ``index`` name it, the same when it is run again."""

    settings: ReadSettings
    scan: str
    index: int
    ranges: tuple[ReadRange, ...]

"""Facts about the node, looked up at each scrape: version, start time, free disk space."""

from __future__ import annotations

import os
import time
from typing import Final

STARTED_AT: Final = time.time()
"""Import time of this module, which the supervisor imports first."""


def node_samples(data_dir: str, version: str) -> dict[str, dict[str, float]]:
    """Values by metric name (of ``table.ASKED``) and label value."""
    found: dict[str, dict[str, float]] = {"start_time": {"": STARTED_AT}, "build_info": {version: 1}}
    try:
        space = os.statvfs(data_dir)
    except OSError:
        return found
    found["storage_free_bytes"] = {"": space.f_bavail * space.f_frsize}
    return found

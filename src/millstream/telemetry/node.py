"""What the node itself knows when somebody asks: which version runs since when, and how much disk is left."""

from __future__ import annotations

import os
import time
from typing import Final

STARTED_AT: Final = time.time()
"""When this module was imported, which the supervisor does first of all."""


def node_samples(data_dir: str, version: str) -> dict[str, dict[str, float]]:
    """Name of a metric of `table.ASKED` → value of its label → value."""
    found: dict[str, dict[str, float]] = {"start_time": {"": STARTED_AT}, "build_info": {version: 1}}
    try:
        space = os.statvfs(data_dir)
    except OSError:
        return found
    found["storage_free_bytes"] = {"": space.f_bavail * space.f_frsize}
    return found

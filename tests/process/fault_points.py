"""A shard hook (``internal.shard.hook``) that raises in one verb of the partitions of one topic.

The file that ``MILLSTREAM_FAULT_POINT`` names has the point and the topic in one line; without it nothing raises. With
a third word, ``once``, the broker that raises first removes it.
"""

import os
from pathlib import Path

from millstream.partition.append import checks as appends
from millstream.partition.append import markers
from millstream.partition.lifecycle import Lifecycle
from millstream.storage.log.log import Log
from millstream.storage.log.open_log import OpenLog
from millstream.storage.log.write_behind import WriteBehind
from millstream.storage.maintenance import checkpoint
from millstream.storage.maintenance.housekeeping import Housekeeping

POINTS = {
    "append": (appends, "_append", lambda arguments: arguments[0].log),
    "append of the broker's own": (appends, "_append_trusted", lambda arguments: arguments[0].log),
    "marker": (markers, "_append", lambda arguments: arguments[0].log),
    "read": (Log, "read", lambda arguments: arguments[0]),
    "commit": (OpenLog, "became_durable", lambda arguments: arguments[0]),
    "write behind": (WriteBehind, "advance", lambda arguments: arguments[0]._log),
    "checkpoint": (checkpoint, "_LogCapture", lambda arguments: arguments[0]),
    "roll": (OpenLog, "roll", lambda arguments: arguments[0]),
    "retention": (Housekeeping, "retain", lambda arguments: arguments[1]),
    "change of its configuration": (Lifecycle, "_configure", lambda arguments: arguments[1].log),
}
"""Each verb of the reactor: where it is, and the log that it is about."""


class Planted(Exception):
    """What no verb raises."""


def armed(point, log):
    file = Path(os.environ["MILLSTREAM_FAULT_POINT"])
    try:
        wanted, topic, *once = file.read_text().strip().split("|")
        if wanted != point or log.topic != topic:
            return False
        if once:
            file.unlink()
    except (OSError, ValueError):
        return False
    return True


def hook(node):
    _ = node
    for point, (place, name, log_of) in POINTS.items():
        setattr(place, name, raising(point, getattr(place, name), log_of))


def raising(point, verb, log_of):
    def planted(*arguments, **named):
        if armed(point, log_of(arguments)):
            raise Planted(f"planted in {point}")
        return verb(*arguments, **named)

    return planted

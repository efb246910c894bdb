"""Imported by each Python process with this directory on its path: an exception in one verb of a helper process.

The file that ``MILLSTREAM_HELPER_FAULT`` names has the verb, and a part of the path of the files whose command raises;
without it nothing raises. Helpers are forks, so what is planted here is in the real ones. The verbs of reactors are
those of ``fault_points``.
"""

import os
from pathlib import Path

POINTS = {
    "write": ("millstream.storage.segments.files", "SegmentFiles", "write", lambda command: command.path),
    "read": ("millstream.storage.segments.reads", "Reader", "read", lambda command: command.path),
    "find": ("millstream.storage.segments.reads", "Reader", "find", lambda command: command.path),
    "index": ("millstream.storage.segments.files", "SegmentFiles", "write_index", lambda path, *_: path),
    "remove": ("millstream.storage.segments.files", "SegmentFiles", "remove", lambda path: path),
    "directory": ("millstream.storage.segments.files", "SegmentFiles", "remove_directory", lambda path: path),
    "feed": ("millstream.storage.processes.event_reader", "EventReader", "feed", lambda command: command.path),
    "data": ("millstream.storage.processes.event_reader", "EventReader", "fetch", lambda command: command.path),
    "inspect": ("millstream.storage.processes.inspector", "", "inspect", None),
    "keys": ("millstream.storage.compaction.cleaner", "Cleaner", "_gather", lambda command: command.sources[0].path),
    "rewrite": ("millstream.storage.compaction.cleaner", "Cleaner", "_rewrite", lambda command: command.path),
    "name": ("millstream.storage.compaction.cleaner", "Cleaner", "_put", lambda command: command.path),
    "forget": ("millstream.storage.compaction.cleaner", "Cleaner", "forget", None),
    "upload": ("millstream.tiers.upload_process", "", "upload", lambda changes, disk, command, *_: command.path),
}
"""Each verb: where it is, and the path that it is about; with None whatever it is about."""


class Planted(Exception):
    """What no verb raises."""


def raising(point, verb, path_of, *, bound):
    def planted(*arguments, **named):
        try:
            wanted, path = Path(os.environ["MILLSTREAM_HELPER_FAULT"]).read_text().split("|")
        except (OSError, ValueError):
            return verb(*arguments, **named)
        if wanted == point and (path_of is None or path in str(path_of(*arguments[bound:]))):
            raise Planted(f"planted in {point}")
        return verb(*arguments, **named)

    return planted


def plant():
    import importlib

    for point, (module, owner, name, path_of) in POINTS.items():
        place = importlib.import_module(module)
        place = getattr(place, owner) if owner else place
        setattr(place, name, raising(point, getattr(place, name), path_of, bound=bool(owner)))


if "MILLSTREAM_HELPER_FAULT" in os.environ:
    plant()

"""Counts of rows from segment files, from the object store and from brokers, written by the tasks and summed up on
request.

A Python source cannot report numbers to Spark's own metrics. A query that wants them names a directory that all tasks
can write to (option ``stats.dir``). Each task writes one small file there, named by what it read. A retried task, and a
replayed micro-batch, writes the same file again, so nothing is counted twice.
"""

import os
import tempfile

import msgspec


class ReadStats(msgspec.Struct):
    """Rows passed to Spark and bytes of log read, by source."""

    segment_rows: int = 0
    segment_bytes: int = 0
    archive_rows: int = 0
    archive_bytes: int = 0
    tail_rows: int = 0
    tail_bytes: int = 0
    tasks: int = 0

    def add(self, other: "ReadStats") -> None:
        """Add the counts of another task or query."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def rows(self) -> int:
        return self.segment_rows + self.archive_rows + self.tail_rows


def write_stats(directory: str, scan: str, index: int, stats: ReadStats) -> None:
    """Write the counts of one task. The file appears complete or not at all."""
    os.makedirs(directory, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".stats-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(stats))
    os.replace(temporary, os.path.join(directory, f"{scan}-{index}.json"))


def read_stats(directory: str | os.PathLike[str]) -> ReadStats:
    """The sum over the tasks of all queries with this ``stats.dir``; zeros if there is nothing yet."""
    total = ReadStats()
    try:
        names = [name for name in os.listdir(directory) if name.endswith(".json") and not name.startswith(".")]
    except FileNotFoundError:
        return total
    for name in names:
        with open(os.path.join(directory, name), "rb") as file:
            total.add(msgspec.json.decode(file.read(), type=ReadStats))
    return total

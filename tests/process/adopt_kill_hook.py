"""A disk factory (``internal.disk.factory``) that kills the whole broker at one named step of an install.

The file that ``MILLSTREAM_KILL_AT`` names has the step, as in ``archive_kill_hook``. The factory runs before the fork,
so that the steps of the shard and those of its worker are both seen.
"""

from archive_kill_hook import step

from millstream.partition.replica.adopting import Adoption
from millstream.storage import shard_storage
from millstream.storage.disk import SystemDisk
from millstream.storage.messages.receiving import Adopt
from millstream.storage.segments.incoming import IncomingLog

STEPS = (
    "before the first batch",
    "after a sealed segment",
    "before the last files",
    "after the last files",
    "before the note",
    "the note is durable",
    "before the old log goes aside",
    "after the old log went aside",
    "after the new log took its place",
    "within the removal of the old log",
    "before the log is opened again",
)


class KillingDisk(SystemDisk):
    """The steps of `segments.incoming.put_in_place`."""

    def rename(self, source, target):
        aside = target.endswith(".deleted") and "/topics/" in target
        if aside:
            step("before the old log goes aside")
        super().rename(source, target)
        if aside:
            step("after the old log went aside")
        elif source.endswith(".staged") and not target.endswith(".staged"):
            step("after the new log took its place")

    def unlink(self, path):
        super().unlink(path)
        if ".deleted/" in path and "/topics/" in path:
            step("within the removal of the old log")


def disk():
    """Patch what no file shows, and give the disk."""
    add, seal, finish = IncomingLog.add, IncomingLog._seal, IncomingLog.finish
    adopt, send, adopted = shard_storage.adopt, shard_storage.ShardStorage.send, Adoption._adopted

    def added(self, views, now_ms):
        step("before the first batch")
        add(self, views, now_ms)

    def sealed(self):
        seal(self)
        step("after a sealed segment")

    def finished(self, *arguments):
        step("before the last files")
        finish(self, *arguments)
        step("after the last files")

    def noted(*arguments):
        step("before the note")
        adopt(*arguments)

    def sent(self, command):
        if isinstance(command, Adopt):
            step("the note is durable")
        send(self, command)

    def opened(self):
        step("before the log is opened again")
        adopted(self)

    IncomingLog.add, IncomingLog._seal, IncomingLog.finish = added, sealed, finished
    shard_storage.adopt, shard_storage.ShardStorage.send, Adoption._adopted = noted, sent, opened
    return KillingDisk()

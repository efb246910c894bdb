"""The boundary of a helper process: a command about one log that raises what no command raises ends that log, not the
process.

The reply names the command and carries the traceback; the reactor hands it to the partition's boundary
(``partition.boundary``), or answers the one read. A checkpoint names each log of which a file has
raised (``segments.broken_logs``). A directory that cannot be removed is tried again, as after an error of the disk.
Commands that concern what logs share (files of the write-ahead log) end the process, and with it the shard.
"""

from __future__ import annotations

import errno
import traceback

from millstream.storage.disk import is_of_one_log
from millstream.storage.messages.commands import (
    Broke,
    Command,
    Cut,
    Failed,
    Feed,
    FetchData,
    Find,
    Read,
    Remove,
    Removed,
    RemoveDirectory,
    Write,
)
from millstream.storage.messages.receiving import Adopt, Resume, Resumed, Stage, Staged, StageEnd
from millstream.telemetry.log import log as operator_log


def failed(error: OSError, what: str) -> Failed:
    """The reply to a command whose failure ends the shard.

    Raises:
        OSError: ``error``, if it says nothing about other logs.
    """
    if is_of_one_log(error):
        raise error
    return Failed(f"{what}: {error.strerror}")


def broken(command: Command, error: Exception) -> Broke | Staged | Resumed | Removed:
    """The reply to a command that has raised ``error``, which is being handled.

    Raises:
        Exception: ``error``, if it is not about one log.
    """
    what = f"{type(error).__name__}: {error} in a helper process\n{traceback.format_exc()}"
    if isinstance(command, (Read, Find, Feed, FetchData, Write, Cut, Remove, Adopt)):
        return Broke(command.id, what)
    if isinstance(command, RemoveDirectory):
        operator_log.error("%s could not be removed, which should not happen: %s", command.directory, what)
        return Removed(command.id, errno.EIO)
    if isinstance(command, Resume):
        operator_log.error("files that were received are not continued, which should not happen: %s", what)
        return Resumed(command.id, "")
    if isinstance(command, (Stage, StageEnd)):
        return Staged(command.id, 0, -1, what.partition("\n")[0])
    raise error

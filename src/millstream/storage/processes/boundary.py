"""The boundary of a helper process: a command about one log that raises what no command raises ends that log, not the
process.

The reply names the log, by its group or by the command's number, and carries the traceback; the reactor hands it to the
partition's boundary (``partition.boundary``), or answers the one read. Commands that concern what logs share
(checkpoints, files of the write-ahead log, removals of directories) end the process, and with it the shard.
"""

from __future__ import annotations

import traceback
from typing import Final

from millstream.storage.messages.commands import Broke, Command, Feed, FetchData, Find, Read, Write
from millstream.storage.messages.receiving import Stage, Staged, StageEnd

WRITE: Final = "write behind"
READ: Final = "read"
LOOK_UP: Final = "look-up"
EVENT_READ: Final = "event read"


class HelperFault(Exception):
    """What a helper process has met in a command about one log. Its text ends with the traceback there."""


def broken(command: Command, error: Exception) -> Broke | Staged:
    """The reply to a command that has raised ``error``, which is being handled.

    Raises:
        Exception: ``error``, if it is not about one log.
    """
    what = f"{type(error).__name__}: {error} in a helper process\n{traceback.format_exc()}"
    if isinstance(command, Write):
        return Broke(command.group, -1, WRITE, what)
    if isinstance(command, Read):
        return Broke(-1, command.id, READ, what)
    if isinstance(command, Find):
        return Broke(-1, command.id, LOOK_UP, what)
    if isinstance(command, (Feed, FetchData)):
        return Broke(-1, command.id, EVENT_READ, what)
    if isinstance(command, (Stage, StageEnd)):
        stage = command if isinstance(command, Stage) else command.stage
        return Staged(stage.id, 0, -1, what.partition("\n")[0])
    raise error

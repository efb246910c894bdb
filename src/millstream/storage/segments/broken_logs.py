"""The boundary of a step about one log inside of a command that is about many, such as a checkpoint.

A step that raises what no step raises ends that log alone: the command continues with the others, and its reply names
the log's directory with the traceback. So does an error that says nothing about the disk, such as a directory that
another program has removed. Any other error of the disk is the command's own.
"""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

from millstream.storage.disk import is_of_one_log

if TYPE_CHECKING:
    from collections.abc import Callable


class BrokenLogs:
    """The logs that have raised in one command."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        """Directories of logs, each with its first exception."""

    def run(self, path: str, step: Callable[..., None], *arguments: object) -> bool:
        """Run a step about the file ``path`` of a log; whether it has returned. Raises OSError."""
        try:
            step(*arguments)
        except Exception as error:
            if isinstance(error, OSError) and not is_of_one_log(error):
                raise
            what = f"{type(error).__name__}: {error} in a helper process\n{traceback.format_exc()}"
            self.found.setdefault(os.path.dirname(path), what)
            return False
        return True

"""The process of the cleaner: executes the commands of its shard one by one.

During a pass, the pauses of its pace wait on the socket: an ``Interrupt`` or a ``Stop`` ends the pause and the work,
other commands wait. The process ends on request, or when the shard has ended. It has the lowest priority, and uses what
shards, writers and workers leave.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from millstream.storage.compaction.cleaner import Cleaner, Pace
from millstream.storage.messages.commands import Command, Interrupt, Stop, decode_command, encode

if TYPE_CHECKING:
    import socket

    from millstream.helper.channel import HelperChannel
    from millstream.storage.disk import Disk

_NICENESS: Final = 19
_POLL_S: Final = 600.0


class CleanerProcess:
    """The main loop. Lifecycle: constructed in the forked process, ``run`` once."""

    def __init__(self, disk: Disk, end: socket.socket, channel: HelperChannel) -> None:
        self._channel = channel
        self._commands: deque[Command] = deque()
        self._gone = False
        self._poll = select.poll()
        self._poll.register(end.fileno(), select.POLLIN)
        self._cleaner = Cleaner(disk, Pace(self._rest))

    def run(self) -> int:
        """Execute commands until the request to stop."""
        os.nice(_NICENESS)
        while True:
            while not self._commands and not self._gone:
                self._receive()
            if self._gone:
                return 0
            command = self._commands.popleft()
            if isinstance(command, Stop):
                return 0
            reply = self._cleaner.carry_out(command)
            if reply is not None:
                self._channel.send([encode(reply)])

    def _receive(self) -> None:
        messages = self._channel.receive()
        self._gone = not messages
        self._commands.extend(map(decode_command, messages))

    def _rest(self, seconds: float) -> bool:
        """Wait. True if the current work is to be cancelled."""
        deadline = time.monotonic() + seconds
        while not self._gone:
            for command in self._commands:
                if isinstance(command, Interrupt):
                    self._commands.remove(command)
                    return True
                if isinstance(command, Stop):
                    return True
            left_s = deadline - time.monotonic()
            if self._poll.poll(max(0.0, min(left_s, _POLL_S)) * 1000):
                self._receive()
            elif left_s <= _POLL_S:
                return False
        return True

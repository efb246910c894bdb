"""The cleaner's process: takes commands from its shard one after the other, and looks up from its work for more.

While a pass is under way the process rests as its pace wants it to, on its socket: an `Interrupt` or a `Stop` ends the
rest and the work with it, everything else waits its turn. It ends when it is told to, or when the shard is gone. It is
at the lowest priority that there is: it takes what the shards, the writers and the workers leave.
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

    from millstream.storage.disk import Disk
    from millstream.storage.messages.channel import WorkerChannel

_NICENESS: Final = 19
_POLL_S: Final = 600.0


class CleanerProcess:
    """See the module. Lifecycle: constructed in the forked process, `run` once."""

    def __init__(
        self, disk: Disk, end: socket.socket, channel: WorkerChannel, bytes_per_second: float, cpu_percent: int
    ) -> None:
        self._channel = channel
        self._commands: deque[Command] = deque()
        self._gone = False
        self._poll = select.poll()
        self._poll.register(end.fileno(), select.POLLIN)
        self._cleaner = Cleaner(disk, Pace(bytes_per_second, cpu_percent, self._rest))

    def run(self) -> int:
        """Until told to stop."""
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
        """Wait, or until there is a reason to give up what is under way."""
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

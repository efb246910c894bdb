"""The reactor's side of the upload process: segments to upload, at idle priority as long as that is fast enough.

::

    idle ──a closed segment waits longer than `WAITS_US`──► hurried: another process, of ordinary priority
      ▲                                                          │
      └──────── none waits longer than a quarter of that ────────┘ the same process, made idle

A process cannot leave the class *idle* without a right that brokers seldom have. So the idle one is killed, and what it
was asked for is asked again: an upload that is repeated writes the same object. The process is forked for its first
upload. It holds nothing that must survive, and is killed at the stop of the shard.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Final

from millstream.helper.channel import ReactorChannel
from millstream.tiers.messages import encode
from millstream.tiers.upload_process import make_idle

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from millstream.helper.link import CallId
    from millstream.shard.process import Child
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.messages import Upload

    StartUploads = Callable[[bool], tuple[Child, list[socket.socket]]]
    """Forks the process, idle or not."""

WAITS_US: Final = 60_000_000
"""How long a closed segment may wait for its upload, if `segment.upload.max.ms` is not shorter."""


class UploadLink:
    """One per shard. Lifecycle: made on the reactor; `stop` once.

    Invariant: ``_asked`` has the uploads that the process of now was sent and has not answered.
    """

    def __init__(
        self,
        reactor: Reactor,
        stats: StatsSlab,
        start: StartUploads,
        on_message: Callable[[bytes], None],
        on_ended: Callable[[str], None],
    ) -> None:
        """``on_message`` is called with each reply, ``on_ended`` with the reason if the process ends by itself."""
        self._reactor = reactor
        self._start = start
        self._on_message = on_message
        self._on_ended = on_ended
        self._child: Child | None = None
        self._channels: list[ReactorChannel] = []
        self._turns: Iterator[ReactorChannel] = iter(())
        self._asked: dict[CallId, Upload] = {}
        self._lag_us = stats.gauge("archive_upload_lag")
        self._behind = stats.gauge("archive_uploads_behind")
        self.hurried = False
        """Whether uploads have ordinary priority now. `hurry` and `rest` write it."""

    def send(self, command: Upload) -> None:
        """Upload a segment; its reply comes by ``on_message``."""
        if self._child is None:
            self._begin()
        self._asked[command.id] = command
        next(self._turns).send(encode(command))

    def answered(self, number: CallId) -> None:
        """A command was answered."""
        self._asked.pop(number, None)

    def heed(self, waited_us: int, allowed_us: int) -> None:
        """The closed segment that waits longest has waited so long."""
        self._lag_us.set(waited_us)
        allowed_us = min(allowed_us, WAITS_US)
        if not self.hurried and waited_us > allowed_us:
            self.hurry()
        elif self.hurried and waited_us <= allowed_us // 4:
            self.rest()

    def hurry(self) -> None:
        """Uploads fall behind: continue at ordinary priority."""
        self.hurried = True
        self._behind.set(1)
        if self._child is not None:
            self._end()
            self._begin()
            for command in self._asked.values():
                next(self._turns).send(encode(command))

    def rest(self) -> None:
        """Uploads have caught up: continue at idle priority."""
        self.hurried = False
        self._behind.set(0)
        if self._child is not None:
            make_idle(self._child.pid)

    def stop(self) -> None:
        """End the process at once: all that it was doing may be repeated."""
        if self._child is not None:
            self._end()

    def _begin(self) -> None:
        child, ends = self._start(not self.hurried)
        self._child = child
        self._channels = [ReactorChannel(self._reactor, end, self._on_message) for end in ends]
        self._turns = cycle(self._channels)

        def ended() -> None:
            self._reactor.remove_reader(child.pidfd)
            status = child.poll()
            if child is self._child:
                self._on_ended(f"{child.name} {status}")

        self._reactor.add_reader(child.pidfd, ended)

    def _end(self) -> None:
        child, self._child = self._child, None
        assert child is not None
        child.kill()
        for channel in self._channels:
            channel.close()

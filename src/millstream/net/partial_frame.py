"""A frame that did not arrive whole, and is received straight into arena fragments of its full length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.iobuf.outbox import MAX_VIEWS

if TYPE_CHECKING:
    from socket import socket as TcpSocket  # noqa: N812

    from millstream.iobuf import IoBuf


class PartialFrame:
    """A frame on its way in.

    Lifecycle: made by `net.budget` when the frame has its memory; handled when nothing is missing. Shard: the
    connection's.

    Invariants: the first ``size - missing`` bytes of ``chain`` have been received. ``is_large`` says whether the socket
    is readable for large parts only.
    """

    __slots__ = ("chain", "is_large", "missing", "size")

    def __init__(self, chain: IoBuf, size: int, received: memoryview) -> None:
        """``received`` is what the frame's first receive brought; it is copied."""
        self.chain: IoBuf | None = chain
        """None while the frame is handled: the handler's caller releases it."""
        self.size = size
        self.is_large = False
        self.missing = size - len(received)
        position = 0
        for view in chain.views():
            part = min(len(view), len(received) - position)
            view[:part] = received[position : position + part]
            position += part
            if position == len(received):
                break

    def receive(self, sock: TcpSocket) -> int:
        """Receive what the kernel has of the frame. Returns the number of bytes, 0 at the end of the stream.

        Raises:
            OSError: as ``recv_into``.
        """
        assert self.chain is not None
        views = self.chain.views()
        have = self.size - self.missing
        while have >= len(views[0]):
            have -= len(views.pop(0))
        if have:
            views[0] = views[0][have:]
        del views[MAX_VIEWS:]
        count = sock.recv_into(views[0]) if len(views) == 1 else sock.recvmsg_into(views)[0]
        self.missing -= count
        return count

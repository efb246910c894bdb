"""What a connection still has to send: buffers in order, and what to release after their last byte.

A fetch answers with views of the log cache. Those fragments may be reused only after the kernel took their bytes, so
each answer comes with a *holder* whose ``release`` is called exactly then, or when the connection is dropped, never
before. Positions count bytes since the start of the connection; they never wrap.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview

MAX_VIEWS = 256
"""Views handed to one ``sendmsg`` or ``recvmsg``; the kernel takes 1024, and more cost more than a second call."""

MAX_BYTES = 1 << 20
"""Bytes handed to one ``sendmsg``: a MiB keeps the call under the 500 µs that a callback may take."""

JOINED_BYTES = 16 << 10
"""Several small answers are joined up to this size: copying them costs less than handing them over one by one."""


class Holder(Protocol):
    """Something that keeps memory until it was sent."""

    def release(self) -> None: ...


class Outbox:
    """Queue of buffers of one connection.

    Shard: the connection's.
    """

    __slots__ = ("buffers", "head", "holders", "lent", "tail")

    def __init__(self) -> None:
        self.buffers: deque[Buffer] = deque()
        self.holders: deque[tuple[int, Holder, int]] = deque()  # place of the last byte, whose, how many
        self.lent = 0  # bytes of responses with a holder, those not yet pushed included
        self.head = 0  # bytes the kernel has taken
        self.tail = 0  # bytes ever queued

    @property
    def queued_bytes(self) -> int:
        return self.tail - self.head

    @property
    def lent_unsent(self) -> int:
        """The part of ``lent`` that the kernel has not taken. Some of the first answer with a holder may be sent."""
        if not self.holders:
            return self.lent
        end, _, size = self.holders[0]
        return self.lent - max(0, self.head - (end - size))

    def push(self, buffers: Sequence[Buffer], size: int, holder: Holder | None) -> None:
        """Queue one answer of ``size`` bytes; ``holder`` is released when all of it was sent."""
        self.buffers.extend(buffers)
        self.tail += size
        if holder is not None:
            self.holders.append((self.tail, holder, size))

    def next_views(self) -> list[Buffer]:
        """The buffers of the next ``sendmsg``."""
        buffers = self.buffers
        queued = self.tail - self.head
        if len(buffers) <= 2 and queued <= MAX_BYTES:
            return list(buffers)
        if queued <= JOINED_BYTES:
            joined = b"".join(buffers)
            buffers.clear()
            buffers.append(joined)
            return [joined]
        views: list[Buffer] = []
        room = MAX_BYTES
        for buffer in buffers:
            views.append(buffer if len(buffer) <= room else memoryview(buffer)[:room])
            room -= len(buffer)
            if room <= 0 or len(views) == MAX_VIEWS:
                break
        return views

    def sent(self, count: int) -> None:
        """The kernel took ``count`` bytes."""
        self.head += count
        buffers = self.buffers
        if self.head == self.tail:
            buffers.clear()
        else:
            while count:
                size = len(buffers[0])
                if size > count:
                    buffers[0] = memoryview(buffers[0])[count:]
                    break
                buffers.popleft()
                count -= size
        holders = self.holders
        while holders and holders[0][0] <= self.head:
            _, holder, size = holders.popleft()
            self.lent -= size
            holder.release()

    def drop(self) -> None:
        """The connection is closed: release everything."""
        self.buffers.clear()
        self.head = self.tail
        holders, self.holders = self.holders, deque()
        self.lent = 0
        for _, holder, _ in holders:
            holder.release()

"""Blocks that are uploaded go to the warm cache of another process: packets of at most 64 KiB over a local socket.

::

    upload process ──packets of block 7──► socket (SOCK_SEQPACKET) ──► archive process: whole blocks to the warm cache

The receiver takes packets at once, and the cache drops what it has no time for, so that an upload never waits for a
cache for long. **Crash.** A sender that is killed halfway leaves a part of a block; the first packet of another block
drops it. **Bad input.** A packet that is no continuation of the block before it is left out, with that block.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import uuid
from typing import TYPE_CHECKING, Final

from millstream.format.manifest import ArchiveId
from millstream.model.quantities import Offset, TimestampMs

if TYPE_CHECKING:
    from collections.abc import Callable

    OnBlock = Callable[[ArchiveId, Offset, memoryview, TimestampMs], None]

_HEAD: Final = struct.Struct("<QQIIqq16sI4x")
"""Sender, number of the block, bytes before this packet, bytes of the block, its base offset, its largest timestamp,
topic id, partition.
"""

PACKET_BYTES: Final = 64 << 10
BLOCK_BYTES_MAX: Final = 1 << 30


def block_pair() -> tuple[socket.socket, socket.socket]:
    """The sender's and the receiver's end."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class BlockSender:
    """The end of uploads. Safe for threads. The first error ends it: readers fill the cache as before."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._number = 0
        self._ended = False

    def send(self, owner: ArchiveId, base_offset: Offset, block: memoryview, newest: TimestampMs) -> None:
        """Pass a block on."""
        with self._lock:
            self._number += 1
            try:
                for begin in range(0, 0 if self._ended else len(block), PACKET_BYTES):
                    head = _HEAD.pack(
                        os.getpid(),
                        self._number,
                        begin,
                        len(block),
                        base_offset,
                        newest,
                        owner.topic_id.bytes,
                        owner.partition_index,
                    )
                    self._end.sendmsg([head, block[begin : begin + PACKET_BYTES]])
            except OSError:
                self._ended = True


class BlockReceiver:
    """The end of the warm cache. Invariant: ``_have`` bytes of the block ``_key`` are there, from its beginning on."""

    def __init__(self, on_block: OnBlock) -> None:
        self._on_block = on_block
        self._key = (0, 0)
        self._data = bytearray()
        self._have = 0

    def receive(self, end: socket.socket) -> None:
        """Take packets until no sender is left."""
        packet = memoryview(bytearray(_HEAD.size + PACKET_BYTES))
        while count := end.recv_into(packet):
            self.take(packet[:count])
        end.close()

    def take(self, packet: memoryview) -> None:
        """Take one packet; the last one of a block passes it to the cache."""
        if len(packet) <= _HEAD.size:
            return
        sender, number, begin, size, base_offset, newest, topic_id, partition = _HEAD.unpack_from(packet)
        part = packet[_HEAD.size :]
        if not begin and size <= BLOCK_BYTES_MAX:
            self._key, self._data, self._have = (sender, number), bytearray(size), 0
        if self._key != (sender, number) or begin != self._have or begin + len(part) > len(self._data):
            self._key = (0, 0)
            return
        self._data[begin : begin + len(part)] = part
        self._have += len(part)
        if self._have == len(self._data):
            self._key = (0, 0)
            owner = ArchiveId(uuid.UUID(bytes=topic_id), partition)
            self._on_block(owner, Offset(base_offset), memoryview(self._data), TimestampMs(newest))

"""The frames between the supervisor and its side process, over one socket pair.

::

    supervisor ──REQUEST──► side process          one number a request, several at once
               ◄──HEAD──────                      status and headers, with the whole body unless parts follow
               ◄──PART──────  ──CREDIT──►         at most PARTS_AHEAD parts of a request wait in the supervisor
               ◄──END───────                      the last part was sent; its body says what failed, if anything did
               ◄──ASK───────  ──ANSWER──►         the request needs something of the broker; a socket may come along
                              ──CANCEL──►         the rest is not wanted

A frame is its length, the number of its request, its kind, and at most ``FRAME_BYTES_MAX`` bytes. One that is longer,
or that does not decode, ends the channel: both ends are of one program, so the other one is broken.
"""

import socket
import struct
from collections import deque
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

from millstream.client.security import PLAIN, Security

FRAME_BYTES_MAX: Final = 16 << 20
PART_BYTES_MAX: Final = 64 << 10
WHOLE_BYTES_MAX: Final = 256 << 10
"""A longer body goes in parts."""
PARTS_AHEAD: Final = 8
_HEAD: Final = struct.Struct("<IIB")
_READ_BYTES: Final = 256 << 10
_FDS_A_READ: Final = 8


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 0
    REQUEST = 1
    CREDIT = 2
    CANCEL = 3
    ANSWER = 4
    HEAD = 5
    PART = 6
    END = 7
    ASK = 8


class SideSettings(msgspec.Struct, frozen=True, array_like=True):
    """The first frame: what the process needs to know. ``console_bootstrap`` is empty where the console reaches the
    broker through sockets that the supervisor makes.
    """

    registry_bootstrap: str
    console_bootstrap: str
    shown_bootstrap: str
    read_only: bool
    secret: bytes
    """Signs the console's cookies. The supervisor has it, so that forms outlive this process."""
    registry_security: Security = PLAIN
    console_security: Security = PLAIN
    """With an opening the console's connections say for whom they act, which the supervisor says of each request."""
    tokens: bool = False
    """Whether visitors may log in with a token."""
    issuer: str = ""
    """The OpenID provider where visitors may sign in, and where it sends browsers back to (``console.settings``)."""
    redirect_uri: str = ""
    masks: tuple[str, ...] = ()
    """Fields of records that no visitor sees in the console."""


class SideRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request over HTTP. ``principal`` is who asks; with ``login`` it is empty until the visitor has logged in."""

    room: str
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    principal: str = ""
    login: bool = False
    host: str = ""
    secure: bool = False


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Status and headers of a response. ``length`` is that of all parts, -1 if unknown; ``more``: parts follow."""

    status: int
    content_type: str
    headers: list[tuple[str, str]]
    body: bytes
    more: bool = False
    length: int = -1


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A question to the broker on behalf of a request."""

    what: str
    arguments: list[str]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """``status`` is HTTP's: 200 with ``body``, else ``body`` is the reason. A socket follows if ``fds`` is 1."""

    status: int
    body: bytes
    fds: int = 0


class Frame(NamedTuple):
    """A frame that was received. ``body`` is still encoded."""

    number: int
    kind: Kind
    body: bytes


def encode(message: Any) -> bytes:
    """The body of a frame."""
    return msgspec.msgpack.encode(message)


def send(channel: socket.socket, kind: Kind, number: int, body: bytes = b"", fd: int | None = None) -> None:
    """Send one frame; one thread at a time. A frame with a descriptor is short.

    Raises:
        OSError: the other end has closed.
    """
    assert len(body) <= FRAME_BYTES_MAX, f"a frame of {len(body)} bytes"
    head = _HEAD.pack(len(body), number, kind)
    if fd is None:
        channel.sendall(head + body)
        return
    data = head + body
    sent = socket.send_fds(channel, [data], [fd])
    if sent < len(data):
        channel.sendall(data[sent:])


class Receiver:
    """Cuts frames out of a channel. Belongs to the one thread that reads.

    ``fds`` has the descriptors that came along, in order; who takes one owns it.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._data = bytearray()
        self.fds: deque[int] = deque()

    def receive(self) -> Frame | None:
        """The next frame; None if the other end has closed.

        Raises:
            OSError: the channel is broken.
        """
        if not self._fill(_HEAD.size):
            return None
        size, number, kind = _HEAD.unpack_from(self._data)
        if size > FRAME_BYTES_MAX or kind > Kind.ASK:
            raise OSError(f"a frame of {size} bytes and kind {kind}")
        if not self._fill(_HEAD.size + size):
            raise ConnectionResetError("the other end closed in the midst of a frame")
        body = bytes(memoryview(self._data)[_HEAD.size : _HEAD.size + size])
        del self._data[: _HEAD.size + size]
        return Frame(number, Kind(kind), body)

    @property
    def has_data(self) -> bool:
        """Whether a part of a frame is here already."""
        return bool(self._data)

    def _fill(self, size: int) -> bool:
        while len(self._data) < size:
            data, fds, _, _ = socket.recv_fds(self._channel, _READ_BYTES, _FDS_A_READ)
            self.fds.extend(fds)
            if not data:
                return False
            self._data += data
        return True

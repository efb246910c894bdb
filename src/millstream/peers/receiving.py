"""Receives frames from a socket: whole ones from the scratch buffer, others into memory of their own.

::

    socket ──recv──► shard's scratch buffer ──whole frames──► on_frame   (its views end with the call)
                          └─ a frame that is not whole ─► head: its own bytes │ body: arena fragments, reserved first

Most frames are a few hundred bytes and arrive whole: they cost no memory. The rest of a larger frame is received into
its place directly.

**Overload.** The memory of a body is reserved in the *receive* share of the arena before the body is read. Without room
the body is read and thrown away, and the frame arrives with ``body`` None. The sender takes that for a lost message and
sends its entries again later; heartbeats and votes, which are in heads, always arrive.

**Bad input.** A header outside its bounds or a checksum that does not match is ``Corruption``. The caller closes the
connection, which releases what was reserved (``drop``).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from millstream.errors import Corruption
from millstream.iobuf import Arena, IoBuf, MemoryClass, receive_buffer
from millstream.iobuf.outbox import MAX_VIEWS
from millstream.peers.frames import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    Buffer,
    FrameHeader,
    FrameKind,
    check_body,
    check_head,
    decode_header,
)

SCRATCH_BYTES: Final = 256 << 10

OnFrame = Callable[[FrameKind, memoryview, Sequence[memoryview] | None], None]
"""``on_frame(kind, head, body)``. The views are valid during the call. ``body`` is None if there was no memory for it,
and empty if the frame has none.
"""


class _Unfinished:
    """A frame of which a part has arrived."""

    __slots__ = ("body", "body_missing", "head", "head_have", "header")

    def __init__(self, header: FrameHeader, body: IoBuf | None) -> None:
        self.header = header
        self.head = bytearray(HEADER_BYTES + header.head_bytes)
        self.head_have = 0
        self.body = body
        """None if there is no memory: the bytes are thrown away."""
        self.body_missing = header.body_bytes


class FrameReceiver:
    """The receiving side of one connection.

    Lifecycle: one a connection; ``drop`` at its end. Shard: the connection's.
    Invariants: ``_kept`` is shorter than a header, and empty while ``_frame`` is set.
    """

    def __init__(self, arena: Arena, scratch: memoryview, on_frame: OnFrame) -> None:
        """``scratch`` is the shard's, at least `SCRATCH_BYTES`; it is used during ``receive`` only."""
        self._arena = arena
        self._scratch = scratch
        self._on_frame = on_frame
        self._kept = b""
        self._frame: _Unfinished | None = None
        self._closed = False
        self.dropped_bodies = 0
        """Bodies that were thrown away for lack of memory."""

    def receive(self, sock: Any) -> int:
        """Read once and pass on every frame that is whole then. Returns the number of bytes, 0 at the end of stream.

        Raises:
            Corruption: what arrived is no frame.
            OSError: of the socket; ``BlockingIOError`` if nothing is there.
        """
        frame = self._frame
        if frame is not None:
            return self._receive_into(frame, sock)
        kept = self._kept
        scratch = self._scratch
        scratch[: len(kept)] = kept
        count = sock.recv_into(scratch[len(kept) :])
        if count:
            self._kept = b""
            self._split(scratch[: len(kept) + count])
        return count

    def drop(self) -> None:
        """The connection ends: release the memory of an unfinished frame. No frame is passed on after this."""
        self._closed = True
        frame, self._frame = self._frame, None
        if frame is not None:
            self._release(frame)

    def _split(self, data: memoryview) -> None:
        """Pass on the whole frames in ``data`` and keep the rest."""
        position = 0
        end = len(data)
        while end - position >= HEADER_BYTES:
            header = decode_header(data[position:end])
            begin = position + HEADER_BYTES + header.head_bytes
            after = begin + header.body_bytes
            if after > end:
                self._begin(header, data[position:end])
                return
            head = check_head(header, data[position:begin])
            body = (data[begin:after],) if header.body_bytes else ()
            check_body(header, body)
            self._on_frame(header.kind, head, body)
            if self._closed:
                return
            position = after
        self._kept = bytes(data[position:end])

    def _begin(self, header: FrameHeader, start: memoryview) -> None:
        """Keep the first bytes of a frame that is not whole."""
        frame = _Unfinished(header, self._reserve(header.body_bytes))
        taken = min(len(start), len(frame.head))
        frame.head[:taken] = start[:taken]
        frame.head_have = taken
        rest = start[taken:]
        if frame.body is not None:
            for view in _from(frame.body, 0):
                part = min(len(view), len(rest))
                view[:part] = rest[:part]
                rest = rest[part:]
                if not rest:
                    break
        frame.body_missing -= len(start) - taken
        self._frame = frame

    def _reserve(self, size: int) -> IoBuf | None:
        """Memory for a body of ``size`` bytes; None without room."""
        if not size:
            return IoBuf()
        body = receive_buffer(self._arena, size) if size <= BODY_BYTES_MAX else None
        if body is None:
            self.dropped_bodies += 1
        return body

    def _receive_into(self, frame: _Unfinished, sock: Any) -> int:
        """Receive more of ``frame``, and pass it on when it is whole."""
        if frame.head_have < len(frame.head):
            count = sock.recv_into(memoryview(frame.head)[frame.head_have :])
            frame.head_have += count
        elif frame.body is None:
            count = sock.recv_into(self._scratch[: frame.body_missing])
            frame.body_missing -= count
        else:
            views = _from(frame.body, frame.header.body_bytes - frame.body_missing)[:MAX_VIEWS]
            count = sock.recvmsg_into(views)[0]
            del views
            frame.body_missing -= count
        if count and frame.head_have == len(frame.head) and not frame.body_missing:
            self._finish(frame)
        return count

    def _finish(self, frame: _Unfinished) -> None:
        try:
            head = check_head(frame.header, frame.head)
            body = None if frame.body is None else frame.body.views()
            if body is not None:
                check_body(frame.header, body)
            self._frame = None
            self._on_frame(frame.header.kind, head, body)
        finally:
            self._frame = None
            self._release(frame)

    def _release(self, frame: _Unfinished) -> None:
        if frame.body is not None and frame.header.body_bytes:
            frame.body.release()
            self._arena.unreserve(MemoryClass.RECEIVE, frame.header.body_bytes)
            frame.body = None


class FirstFrame:
    """The first frame of a connection, received exactly: not one byte beyond it is taken from the socket, so that the
    connection can be handed to another process.

    Lifecycle: ``receive`` until it returns the frame.
    """

    def __init__(self, head_bytes_max: int) -> None:
        self._head_bytes_max = head_bytes_max
        self._data = bytearray()
        self._header: FrameHeader | None = None

    def receive(self, sock: Any) -> tuple[FrameKind, bytes] | None:
        """Kind and head of the frame; None if a part is still missing.

        Raises:
            Corruption: it is no frame, or longer than the first frame may be.
            EOFError: the stream ended.
            OSError: of the socket; ``BlockingIOError`` if nothing is there.
        """
        if self._header is None:
            self._take(sock, HEADER_BYTES)
            if len(self._data) < HEADER_BYTES:
                return None
            header = decode_header(self._data)
            if header.kind is FrameKind.TURN or header.head_bytes > self._head_bytes_max:
                raise Corruption(f"the first frame is of kind {header.kind.name} with {header.head_bytes} bytes")
            self._header = header
        header = self._header
        if header.head_bytes and len(self._data) < HEADER_BYTES + header.head_bytes:
            self._take(sock, HEADER_BYTES + header.head_bytes)
        if len(self._data) < HEADER_BYTES + header.head_bytes:
            return None
        return header.kind, bytes(check_head(header, self._data))

    def _take(self, sock: Any, size: int) -> None:
        part = sock.recv(size - len(self._data))
        if not part:
            raise EOFError("the connection ended within its first frame")
        self._data += part


def slice_body(body: Sequence[Buffer], start: int, size: int) -> list[memoryview]:
    """Views of ``size`` bytes of ``body`` from ``start`` on."""
    views: list[memoryview] = []
    for buffer in body:
        if not size:
            break
        length = len(buffer)
        if start >= length:
            start -= length
            continue
        part = memoryview(buffer)[start : start + size]
        views.append(part)
        size -= len(part)
        start = 0
    return views


def _from(body: IoBuf, position: int) -> list[memoryview]:
    """Views of ``body`` from ``position`` to its end."""
    return slice_body(body.views(), position, len(body) - position)

"""One client connection: cuts received bytes into frames, and sends the responses in the order of the requests.

::

    socket ──recv──► shard's scratch buffer ──whole frames──► on_frame (handled at once, straight from the scratch)
                          └─ a frame that is not whole ─► a chain of arena fragments, received into directly

Most frames arrive whole: they are handled in place and cost no memory. The rest of a frame that is not whole is
reserved from the shard's *receive* budget before it is read, for its whole length, so that half-sent frames cannot
fill the arena. A frame without room waits in the line of `net.budget`, and its socket is not read until it has room. A
connection that stalls in the middle of a frame is closed.

Each request is an ``Exchange``. Responses leave in the order of the requests (`net.responses`), once per turn of the
reactor. A request whose effect the next one has to see holds the connection (`Exchange.hold`): nothing is read until it
is completed. Connections with large responses send in turn, one
after the other, so that small requests of other clients do not wait for all of them (`net.turns`). The
unsent bytes of all connections of a shard are bounded, too (`net.owed`); above the bound, those that have any are
not read.

While much of a large frame is missing, its socket is readable from `WAKE_BYTES` on (``SO_RCVLOWAT``), because each part
that is received costs a turn.

Bad input: a negative or oversized frame length closes this connection, with one rate-limited log line. When a
client disconnects, its memory is released. Its requests in progress finish (those that wait for data end at once), and
their responses are dropped. A crash of the shard needs no cleanup here. Overload: memory is reserved before it is
allocated, and without a reservation the connection waits.
"""

import socket
import struct
from collections.abc import Sequence
from errno import EAGAIN, EWOULDBLOCK
from socket import socket as TcpSocket  # noqa: N812
from typing import TYPE_CHECKING, Final

from millstream.iobuf.outbox import MAX_BYTES, Buffer, Holder
from millstream.net.responses import MAX_IN_FLIGHT, MAX_UNSENT_BYTES, Responses

if TYPE_CHECKING:
    from millstream.net.client import Client
    from millstream.net.intake import Intake
    from millstream.net.partial_frame import PartialFrame
    from millstream.wire.produce_again import ProduceAgain

MIN_FRAME_BYTES: Final = 8
"""Size of the shortest request header: API key, version and correlation id."""

FETCH: Final = 1
"""Size of the API key. Its value is 0 for Produce only."""

WAKE_BYTES: Final = 256 << 10
"""Bytes of a large frame that are received at once, at least: 0.1 ms of copying."""

_read_size: Final = struct.Struct(">i").unpack_from


class Exchange:
    """One request of a connection, and its response when it is completed.

    ``complete`` is called exactly once. The exchanges of a connection may be completed in any order.
    ``complete(None, 0)`` means that the protocol has no response (acks=0).
    """

    __slots__ = ("buffers", "connection", "counts", "done", "holder", "holds", "size")

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.done = False
        self.buffers: Sequence[Buffer] | None = None
        self.size = 0
        self.holder: Holder | None = None
        self.holds = False
        self.counts = False

    def hold(self) -> None:
        """Stop reading the connection until this exchange is completed."""
        if not self.done and not self.holds:
            self.holds = True
            self.connection.responses.held += 1

    def count(self) -> None:
        """Count this exchange as costly, until ``rest`` or its end. The number of those is limited."""
        self.counts = True
        self.connection.intake.turns.under_way += 1

    def rest(self) -> None:
        """No longer count it as costly: it waits for an event and uses no CPU."""
        if self.counts:
            self.counts = False
            self.connection.intake.turns.under_way -= 1

    def unhold(self) -> None:
        """Let the connection be read again: the exchange is completed, or keeps no memory while it waits."""
        if self.holds:
            self.holds = False
            self.connection.responses.held -= 1
            self.rest()

    def complete(self, buffers: Sequence[Buffer] | None, size: int, holder: Holder | None = None) -> None:
        """Set the response, including its length prefix."""
        assert not self.done
        self.done = True
        connection = self.connection
        if self.holds:
            self.unhold()
            parking = connection.intake.parking
            if parking.requests:
                parking.leave(self)
        responses = connection.responses
        responses.unsent += size
        if connection.closed:
            if holder is not None:
                holder.release()
            return
        if holder is not None:
            responses.outbox.lent += size
        self.buffers = buffers
        self.size = size
        self.holder = holder
        if responses.exchanges[0] is self or not connection.reading:
            connection.answers_ready()


class Connection:
    """A client's connection.

    Lifecycle: opened by the shard's ``Intake``, closed by the peer, an error, a stall or the shard's stop. Shard: the
    one that it was handed to; only callbacks of this shard may complete exchanges. Invariants: ``reading`` says whether
    the reactor watches the socket; a connection that is not reading is either paused (``stash`` has the bytes that it
    had received) or closed.
    """

    __slots__ = (
        "client",
        "closed",
        "frame",
        "frame_bytes_max",
        "frames",
        "intake",
        "produces",
        "reading",
        "received_us",
        "responses",
        "socket",
        "stash",
    )

    def __init__(self, intake: "Intake", sock: TcpSocket, client: "Client") -> None:
        self.intake = intake
        self.socket = sock
        self.client = client
        self.responses = Responses()
        self.produces: ProduceAgain | None = None
        """Decodes Produce requests that repeat the one before; made with the first."""
        self.frame_bytes_max = intake.frame_bytes_max
        """Less than the intake's while the client has yet to log in."""
        self.frame: PartialFrame | None = None
        """The frame that is being received; its memory is reserved."""
        self.stash = b""
        """The received bytes that are not handled yet."""
        self.frames = 0
        """Number of whole frames so far."""
        self.received_us = 0
        """When the bytes that are being handled came."""
        self.reading = True
        self.closed = False
        intake.reactor.add_reader(sock.fileno(), self.on_readable)

    @property
    def is_stranger(self) -> bool:
        """Whether it has yet to log in: until then it may send small frames only."""
        return self.frame_bytes_max < self.intake.frame_bytes_max

    # Receiving

    def on_readable(self) -> None:
        """Produce 1/8, Fetch 1/8. Receive bytes and handle every whole frame."""
        if self.frame is not None:
            self._receive_into_frame(self.frame)
            return
        scratch = self.intake.budget.scratch
        kept = len(self.stash)
        if kept:
            scratch[:kept] = self.stash
        try:
            count = self.socket.recv_into(scratch[kept:] if kept else scratch)
        except OSError as error:
            self._failed(error)
            return
        if count == 0:
            self.close()
            return
        self.stash = b""
        self.intake.counts.received.inc(count)
        self._split(scratch, kept + count)

    def _split(self, buffer: memoryview, end: int) -> bool:
        """Handle every whole frame in ``buffer[:end]``, keep the bytes after them. True: read on from the socket."""
        intake = self.intake
        self.received_us = intake.reactor.now_us()
        responses = self.responses
        tight = intake.owed.bytes > intake.owed.bytes_max
        position = 0
        while end - position >= 4:
            (size,) = _read_size(buffer, position)
            if not MIN_FRAME_BYTES <= size <= self.frame_bytes_max and not self._is_bare(size):
                intake.refuse(self, _stranger(buffer[position : position + 4]) or f"claims a request of {size} bytes")
                return False
            if responses.held or len(responses.exchanges) >= MAX_IN_FLIGHT or responses.unsent > MAX_UNSENT_BYTES:
                self._pause(buffer[position:end])
                return False
            if tight and self._must_wait(buffer[position : position + 6]):
                self._pause(buffer[position:end])
                return False
            begin = position + 4
            if size > end - begin:
                if end - begin < 2:
                    break  # what is asked for is not known yet
                if not intake.budget.begin_frame(self, size, buffer[begin:end]):
                    self._pause(buffer[position:end])
                    intake.budget.wait(self, size)
                    return False
                return True
            position = begin + size
            self.frames += 1
            if intake.on_frame(self, buffer[begin:position]):
                self._pause(buffer[begin - 4 : end])
                if not responses.held:
                    intake.turns.wait_for_turn(self)
                return False
            if self.closed:
                return False
        if position < end:
            self.stash = bytes(buffer[position:end])
        return True

    def _is_bare(self, size: int) -> bool:
        """Whether a frame without a request header may come now."""
        return 0 < size < MIN_FRAME_BYTES and self.client.gate is not None and self.client.gate.takes_bare

    def _receive_into_frame(self, frame: "PartialFrame") -> None:
        try:
            count = frame.receive(self.socket)
        except OSError as error:
            self._failed(error)
            return
        if count == 0:
            self.close()
            return
        self.intake.counts.received.inc(count)
        is_large = frame.missing >= WAKE_BYTES
        if is_large != frame.is_large:
            frame.is_large = is_large
            self._wake_at(WAKE_BYTES if is_large else 1)
        if not frame.missing:
            self.frames += 1
            self._handle_chain(frame)

    def _wake_at(self, size: int) -> None:
        """Have the socket readable from ``size`` bytes on, or at the end of the stream."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _handle_chain(self, frame: "PartialFrame") -> bool:
        """Handle the frame that was received into fragments. True: read on from the socket."""
        self.received_us = self.intake.reactor.now_us()
        chain, frame.chain = frame.chain, None  # ours until it is handled, even if that closes the connection
        assert chain is not None
        again: bool | None = False
        try:
            again = self.intake.on_chain(self, chain)
        finally:
            if not again:
                chain.release()
                self.intake.budget.end_frame(self)
        if again:
            frame.chain = chain
            self._pause(memoryview(b""))
            if not self.responses.held:
                self.intake.turns.wait_for_turn(self)
            return False
        if self.closed:
            return False
        if self.responses.is_full:
            self._pause(memoryview(b""))
            return False
        return True

    def _must_wait(self, start: bytes | memoryview) -> bool:
        """Whether the request with this beginning waits until the shard has sent more of its responses.

        Produce and Fetch do not wait: their responses are short, or in the arena, which has limits of its own.
        """
        if self.responses.unsent > 0:
            return True
        is_data = len(start) == 6 and not start[4] and start[5] <= FETCH
        return not is_data and self.intake.owed.makes_wait(self)

    def _pause(self, unread: memoryview) -> None:
        """Stop reading, and keep the unhandled bytes. Without room for them the connection is closed."""
        if self.reading:
            self.reading = False
            self.intake.reactor.remove_reader(self.socket.fileno())
        if self.responses.unsent:
            self.intake.owed.account(self.responses)
        self.stash = bytes(unread)
        if not self.intake.budget.stash(len(unread)):
            self.intake.refuse(self, "sent faster than memory allows")

    def stop_reading(self) -> None:
        """Stop reading and never resume, because the shard stops. Responses are still sent."""
        if self.reading:
            self._pause(memoryview(b""))

    def resume(self) -> None:
        """Continue after a pause, first with the bytes that were received already, then with the socket."""
        if self.closed or self.reading or self.intake.draining:
            return
        if self.frame is not None and not self.frame.missing and not self._handle_chain(self.frame):
            return
        stash = self.stash
        if stash:
            self.stash = b""
            if not self._split(self.intake.budget.unstash(stash), len(stash)):
                return
        self.reading = True
        self.intake.reactor.add_reader(self.socket.fileno(), self.on_readable)

    # Answering

    def exchange(self) -> Exchange:
        """Add the next exchange; its response keeps this place in the order."""
        exchange = Exchange(self)
        self.responses.exchanges.append(exchange)
        return exchange

    def answers_ready(self) -> None:
        """Send at the end of this turn, and read on if nothing is in the way: an exchange is completed."""
        if not self.responses.scheduled:
            self.responses.scheduled = True
            self.intake.flush_later(self)

    def flush(self) -> None:
        """Queue the completed responses in order, and send them."""
        responses = self.responses
        responses.scheduled = False
        if self.closed:
            return
        responses.queue_completed()
        if not responses.writing:
            self._send()
        if self.closed:
            return
        if responses.unsent or responses.owed:
            self.intake.owed.account(responses)
        if not self.reading and self.has_caught_up():
            self.resume()

    def has_caught_up(self) -> bool:
        """Whether a connection that is paused may be read again."""
        intake = self.intake
        if not self.responses.are_few or intake.turns.is_waiting(self):
            return False
        if intake.owed.is_over and self._must_wait(self.stash[:6]):
            return False
        return not intake.budget.has_in_line(self)

    def _send(self) -> None:
        """Send up to 1 MiB, as much as the kernel takes. The remainder follows when the socket is writable again."""
        responses = self.responses
        outbox = responses.outbox
        while outbox.tail != outbox.head:
            views = outbox.next_views()
            try:
                count = self.socket.send(views[0]) if len(views) == 1 else self.socket.sendmsg(views)
            except OSError as error:
                count = 0
                if self._failed(error):
                    return
            if count:
                responses.unsent -= count
                self.intake.counts.sent.inc(count)
                outbox.sent(count)
            if outbox.tail != outbox.head and (count == 0 or count >= MAX_BYTES or len(views) > 1):
                if not responses.writing:
                    responses.writing = True
                    self.intake.reactor.add_writer(self.socket.fileno(), self._on_writable)
                    self.intake.stalls.watch()
                return
        self._stop_writing()

    def _stop_writing(self) -> None:
        """No longer wait until the socket takes more."""
        if self.responses.writing:
            self.responses.writing = False
            self.intake.reactor.remove_writer(self.socket.fileno())

    def _on_writable(self) -> None:
        if not self.intake.turns.has_time():
            self._stop_writing()
            self.intake.turns.wait_to_send(self)
            return
        self._send()
        if self.closed:
            return
        if self.reading:
            self.intake.owed.account(self.responses)
        else:
            self.flush()

    # Closing

    def _failed(self, error: OSError) -> bool:
        """Whether ``error`` ends the connection; it is closed then."""
        if error.errno in (EAGAIN, EWOULDBLOCK):
            return False
        self.close()
        return True

    def close(self) -> None:
        """Close the socket and release all memory. Responses that are completed later are dropped."""
        if self.closed:
            return
        self.closed = True
        intake = self.intake
        if self.reading:
            intake.reactor.remove_reader(self.socket.fileno())
            self.reading = False
            self.stash = b""
        self._stop_writing()
        waiting = self.responses.drop()
        if self.frame is not None and self.frame.chain is not None:
            self.frame.chain.release()
            intake.budget.end_frame(self)
        intake.budget.stash(-len(self.stash))
        self.stash = b""
        intake.closed(self)
        self.socket.close()
        for exchange in waiting:
            intake.turns.drop(exchange)


def _stranger(start: memoryview) -> str:
    """The name of another protocol, recognized by the bytes in place of a length; "" if unknown."""
    word = bytes(start)
    if word[:2] == b"\x16\x03":
        return "speaks TLS, and this listener is PLAINTEXT"
    if word in (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI"):
        return "speaks HTTP, and this port is for Kafka clients"
    return ""

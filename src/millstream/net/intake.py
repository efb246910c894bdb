"""All connections of a shard: memory for partial frames, sending at the end of each turn, stalled clients, limits.

What it promises:

- A frame that does not arrive whole gets fragments for its full length from the *receive* share of the arena before its
  body is read. Without room the connection waits its turn and is not read. While one waits, a stalled connection is
  closed: one whose frame made no progress for a second, or takes longer than ``socket.frame.timeout.ms`` from its first
  byte to its last. Frames of up to `SMALL_FRAME_BYTES` go before larger ones. Frames other than Produce have half of
  the share together, plus one frame, so that there is always room for records.
- A client that takes no response bytes for ``SHORT_STALL_MS`` is closed while responses use half of their limit or
  more. Its fragments become free.
- Unsent responses outside the arena have a limit over all connections. Above it, a connection with unsent bytes is not
  read; above four times the limit, only Produce and Fetch are read. A client that takes nothing for a second is closed.
- Decoded requests that wait for their responses have a limit over all connections (``net.parking``). A connection with
  such a request of more than a few kilobytes is not read until it is answered (Kafka does the same for every request).
  So a connection holds one large request, and all connections hold as much as the receive share of the arena and one
  request more. At the limit, the next large request waits.
- A connection without a request for ``connections.max.idle.ms`` is closed.
- Responses that are completed in one turn of the reactor leave in one system call per connection.
- Connections with large responses, or with costly requests (``kafka.cost``), share ``TURN_US`` of a turn and are served
  in rotation, sends first. A small request waits for one of them at most. While responses are at their limit, no costly
  request begins.

The timers for stalls run only while there is something to watch, so an idle shard has none. Garbage on a socket closes
that socket; the log has at most a few lines a minute about it.
"""

import socket
from collections import deque
from collections.abc import Callable, Generator
from typing import Final

from millstream.iobuf import Arena, IoBuf, MemoryClass, receive_buffer
from millstream.net.connection import LARGE_BYTES, Connection, Exchange
from millstream.net.parking import Parking
from millstream.shard.reactor import Reactor, Timer
from millstream.telemetry.log import RateLimit, log
from millstream.telemetry.metrics import StatsSlab

SCRATCH_BYTES: Final = 512 * 1024  # four batches of 128 KiB, in 0.3 ms: a tenth less for each than with half of it
SMALL_FRAME_BYTES: Final = 256 * 1024
PRESSED_STALL_MS: Final = 1_000
SHORT_STALL_MS: Final = 10_000
SWEEP_MS: Final = 500
SMALL_SCRATCH_BYTES: Final = 8 * 1024
"""Bytes received at once while paused connections keep much. The remainder stays in the kernel."""
STASH_BYTES_MAX: Final = 32 << 20  # kept by paused connections of a shard, or a quarter of its arena if that is less
OWED_PART: Final = 4
"""Limit of unsent responses outside the arena, as a fraction of the limit inside it (1/n)."""
OWED_HARD: Final = 4
"""Above this multiple of the limit, only Produce and Fetch are read."""
TURN_US: Final = 1_000
"""Maximum time per turn for large sends and costly requests, in µs. The last one may exceed it."""
LONG_SHARE: Final = 0.3
"""Share of the core for responses that are built in the background."""
UNDER_WAY_MAX: Final = 8
"""Maximum number of costly requests that wait for other shards at once."""
REST_US: Final = 20_000
"""Maximum pause of costly requests in µs. After a long one they pause for as long as it took, up to this."""

_PRODUCE: Final = b"\0\0"

FrameHandler = Callable[[Connection, memoryview], bool | None]
ChainHandler = Callable[[Connection, IoBuf], bool | None]
"""Handles a frame. True: hand it over again in the connection's turn."""


class Intake:
    """The connections of one shard.

    Lifecycle: made with the shard, ``close_all`` at its stop.
    Shard: its own.
    """

    def __init__(
        self,
        reactor: Reactor,
        arena: Arena,
        stats: StatsSlab,
        frame_bytes_max: int,
        idle_ms: int,
        stall_ms: int,
        on_frame: FrameHandler,
        on_chain: ChainHandler,
    ) -> None:
        self.reactor = reactor
        self.arena = arena
        self.frame_bytes_max = min(frame_bytes_max, arena.limit_bytes(MemoryClass.RECEIVE))
        self.idle_ms = idle_ms
        self.stall_ms = stall_ms
        self.on_frame = on_frame
        self.on_chain = on_chain
        self.whole_scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.scratch = self.whole_scratch
        self.connections: set[Connection] = set()
        self.stash_bytes = 0  # kept by paused connections; from a quarter of what there may be on, receives are small
        self.stash_max = min(STASH_BYTES_MAX, arena.capacity_bytes // 4)
        self.owed = 0  # bytes of answers outside the arena that no kernel has taken yet
        self.owed_max = arena.limit_bytes(MemoryClass.FETCH) // OWED_PART
        self.parking = Parking(arena.limit_bytes(MemoryClass.RECEIVE), lambda: self._plan_turns(0))
        self.draining = False  # the shard stops: what is paused stays so
        self.bytes_in = stats.counter("net_received_bytes")
        self.bytes_out = stats.counter("net_sent_bytes")
        self._gauge = stats.gauge("net_connections")
        self._refused = stats.counter("net_refused_frames")
        self._stalled = stats.counter("net_stalled_connections")
        self._accepted = stats.counter("net_accepted_connections")
        self._idle_closed = stats.counter("net_idle_connections_closed")
        self._waiting_gauge = stats.gauge("net_waiting_frames")
        self._quiet = RateLimit(per_minute=6)
        self._dirty: list[Connection] = []
        self._to_send: deque[Connection] = deque()  # those with large answers to send, oldest first
        self._to_do: deque[Connection] = deque()  # those whose next request costs much, oldest first
        self.under_way = 0  # costly requests that wait for other shards
        self._long: dict[Exchange, Generator[None, None, None]] = {}  # answers made in the background, oldest first
        self._turns_planned = False
        self._rest: Timer | None = None  # until the planned turns, if not the next one
        self._first = False  # the connection whose turn it is has asked for nothing yet
        self._no_room = False  # what was asked for last has to wait for room, again or for the first time
        self._again = False
        self._turn = -1  # of the reactor; and until when it has time for such connections
        self._turn_until_us = 0
        self._rest_until_us = 0  # until when no costly request is begun
        self._waiting: deque[tuple[Connection, int]] = deque()
        self._waiting_others: deque[tuple[Connection, int]] = deque()  # those that bring no records
        self._others: dict[Connection, int] = {}  # frames without records that have their room
        self._others_bytes = 0
        self._is_waiting: set[Connection] = set()
        self._for_answers: dict[Connection, None] = {}  # paused until others took theirs, oldest first
        self._sweep: Timer | None = None
        self._idle_sweep: Timer | None = None
        self._seen: dict[Connection, tuple[int, int, int]] = {}  # progress marks and since when (µs)
        self._idle_seen: dict[Connection, tuple[int, int]] = {}  # requests, and since when (µs) no more

    # Connections

    def open(
        self, sock: socket.socket, peer: tuple[str, int], local: tuple[str, int], listener: str = "PLAINTEXT"
    ) -> Connection:
        """Take over a socket that was accepted by the ``listener`` of that name."""
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, sock, peer, local, listener)
        self.connections.add(connection)
        self._accepted.inc()
        self._gauge.set(len(self.connections))
        if self._idle_sweep is None:
            self._watch_idle()
        return connection

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._seen.pop(connection, None)
        self._idle_seen.pop(connection, None)
        self._is_waiting.discard(connection)
        self._waiting_gauge.set(len(self._is_waiting))
        self._for_answers.pop(connection, None)
        self.parking.closed(connection)
        self._gauge.set(len(self.connections))

    def gone(self, exchange: Exchange) -> None:
        """Note that the client of a request under way has disconnected: waits end at once."""
        if not self.parking.end(exchange) and exchange in self._long and exchange is not next(iter(self._long)):
            del self._long[exchange]
            exchange.complete(None, 0)

    def close_all(self) -> None:
        for connection in list(self.connections):
            connection.close()
        for timer in (self._sweep, self._idle_sweep):
            if timer is not None:
                timer.cancel()

    def refuse(self, connection: Connection, why: str) -> None:
        """Close a connection whose bytes no client would send."""
        self._refused.inc(1)
        if self._quiet.allows():
            who, more = f"{connection.host}:{connection.port}", self._quiet.left_out()
            log.warning("closed the connection of %s: it %s%s", who, why, more)
        connection.close()

    def stash(self, size: int) -> bool:
        """Add ``size`` (bytes, may be negative) to what paused connections keep. False: the sum is above the limit."""
        self.stash_bytes += size
        few = self.stash_bytes <= self.stash_max // 4
        self.scratch = self.whole_scratch if few else self.whole_scratch[:SMALL_SCRATCH_BYTES]
        return self.stash_bytes <= self.stash_max

    # Room for frames

    def begin_frame(self, connection: Connection, size: int, received: memoryview) -> bool:
        """Reserve ``size`` bytes and copy the received part of the frame into them. False: no room now."""
        brings_records = bytes(received[:2]) == _PRODUCE
        waiting = self._waiting if brings_records else self._waiting_others
        if waiting and size > SMALL_FRAME_BYTES and connection not in self._is_waiting:
            return False
        frame = receive_buffer(self.arena, size) if size <= self._room(waiting) else None
        if frame is None:
            return False
        if not brings_records:
            self._others[connection] = size
            self._others_bytes += size
        connection.frame = frame
        connection.frame_size = size
        connection.frame_missing = size - len(received)
        position = 0
        for view in frame.views():
            part = min(len(view), len(received) - position)
            view[:part] = received[position : position + part]
            position += part
            if position == len(received):
                break
        self.watch_for_stalls()
        return True

    def end_frame(self, connection: Connection) -> None:
        """Release the room of a frame that was handled or dropped, and resume waiting connections."""
        self.arena.unreserve(MemoryClass.RECEIVE, connection.frame_size)
        self._others_bytes -= self._others.pop(connection, 0)
        connection.frame_size = 0
        if self._is_waiting:
            self.reactor.call_soon(self._admit)

    def wait_for_room(self, connection: Connection, size: int) -> None:
        """Let a paused connection wait for ``size`` bytes for its next frame."""
        if connection.closed:
            return
        if connection not in self._is_waiting:
            self._is_waiting.add(connection)
            waiting = self._waiting if connection.stash[4:6] == _PRODUCE else self._waiting_others
            if size > SMALL_FRAME_BYTES:
                waiting.append((connection, size))
            else:
                waiting.appendleft((connection, size))
            self._waiting_gauge.set(len(self._is_waiting))
        self.watch_for_stalls()

    def is_waiting(self, connection: Connection) -> bool:
        return connection in self._is_waiting

    def _room(self, waiting: deque[tuple[Connection, int]]) -> int:
        """Maximum size of a frame of this kind now, in bytes."""
        share = self.arena.limit_bytes(MemoryClass.RECEIVE)
        room = share - self.arena.reserved_bytes(MemoryClass.RECEIVE)
        if waiting is self._waiting_others and self._others:
            return min(room, share // 2 - self._others_bytes)
        return room

    def _admit(self) -> None:
        """Resume waiting connections, oldest first, while there is room."""
        for waiting in (self._waiting, self._waiting_others):
            while waiting and self._admit_next(waiting):
                pass

    def _admit_next(self, waiting: deque[tuple[Connection, int]]) -> bool:
        """Resume the first waiting connection. True: there may be room for the next."""
        connection, size = waiting[0]
        if connection.closed or connection not in self._is_waiting:
            waiting.popleft()
            return True
        if size > self._room(waiting):
            return False
        waiting.popleft()
        self._is_waiting.discard(connection)
        if not connection.has_caught_up():
            self._waiting_gauge.set(len(self._is_waiting))
            return True  # it waits for its own answers now, and lines up anew when they were taken
        self._is_waiting.add(connection)
        connection.resume()
        self._is_waiting.discard(connection)
        self._waiting_gauge.set(len(self._is_waiting))
        if not connection.reading and not connection.closed and connection.frame is None and connection.stash:
            # The arena could not serve what the budget allowed: first in line again.
            self._is_waiting.add(connection)
            waiting.appendleft((connection, size))
            return False
        return True

    # Sending

    def owe(self, size: int) -> None:
        """Add ``size`` (bytes, may be negative) to the unsent responses outside the arena."""
        self.owed += size
        if self._for_answers and self.owed <= self.owed_max:
            self.reactor.call_soon(self._resume_some)

    def wait_for_answers(self, connection: Connection) -> bool:
        """Whether the connection, without unsent bytes of its own, waits until other clients take their responses."""
        if self.owed <= OWED_HARD * self.owed_max:
            return False
        self._for_answers[connection] = None
        return True

    def _resume_some(self) -> None:
        while self._for_answers and self.owed <= self.owed_max:
            connection = next(iter(self._for_answers))
            del self._for_answers[connection]
            if not connection.closed and not connection.reading and connection.has_caught_up():
                connection.resume()

    def flush_later(self, connection: Connection) -> None:
        """Send the connection's completed responses at the end of this turn."""
        if not self._dirty:
            self.reactor.end_of_turn(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            if connection.unsent > LARGE_BYTES:
                self.flush_in_turn(connection)
            else:
                connection.flush()

    # Turns

    def has_time(self) -> bool:
        """Whether this turn has time left for large sends and costly requests."""
        now_us = self.reactor.now_us()
        if self._turn == self.reactor.turns:
            return now_us < self._turn_until_us
        self._turn = self.reactor.turns
        self._turn_until_us = now_us + TURN_US
        return True

    def must_wait(self, *, large: bool = False) -> bool:
        """Whether a costly request waits for its connection's turn; a ``large`` one waits for room, too."""
        first, self._first = self._first, False
        if large and (self.parking.is_full() or (self.parking.has_line() and not first)):
            self._no_room, self._again = True, first
            return True
        return not first and (bool(self._to_do) or not self._may_begin())

    def _may_begin(self) -> bool:
        """Whether a costly request may begin: there is time, few are under way, and clients take their responses."""
        return self.under_way < UNDER_WAY_MAX and self.owed <= self.owed_max and self.has_time()

    def flush_in_turn(self, connection: Connection) -> None:
        """Send the connection's large responses: now, or behind the connections that wait already."""
        if not self._to_send and self.has_time():
            connection.flush()
        else:
            self.wait_to_send(connection)

    def wait_to_send(self, connection: Connection) -> None:
        """Send the connection's large responses behind the connections that wait already."""
        if not connection.sends and not connection.closed:
            connection.sends = True
            connection.account()
            self._to_send.append(connection)
            self._plan_turns(0)

    def wait_for_turn(self, connection: Connection) -> None:
        """Let the connection continue with its costly request behind the connections that wait already."""
        no_room, self._no_room = self._no_room, False
        if connection.waits or connection.closed:
            return
        connection.waits = True
        if not no_room:
            self._to_do.append(connection)
            self._plan_turns(0)
        else:
            self.parking.line_up(connection, again=self._again)

    def _plan_turns(self, in_us: int) -> None:
        if self._turns_planned and (in_us or self._rest is None):
            return
        self._turns_planned = True
        if self._rest is not None:
            self._rest.cancel()
        self._rest = self.reactor.call_later(in_us, self._in_next_turn) if in_us else None
        if not in_us:
            self._in_next_turn()

    def _in_next_turn(self) -> None:
        self._rest = None
        self.reactor.call_soon(self._take_turns)

    def _take_turns(self) -> None:
        """Send first, because that makes room. Then handle costly requests, and pause if they took long."""
        self._turns_planned = False
        for _ in range(len(self._to_send)):
            if not self.has_time():
                break
            connection = self._to_send.popleft()
            connection.sends = False
            connection.flush()
        begun_us = self.reactor.now_us()
        admitted = self.parking.admit()
        if admitted is not None:
            self._to_do.append(admitted)
        if begun_us >= self._rest_until_us:
            for _ in range(len(self._to_do)):
                if not self._may_begin():
                    break
                connection = self._to_do.popleft()
                connection.waits = False
                self._first = True
                connection.flush()
                self._first = False
            took_us = self.reactor.now_us() - begun_us
            if took_us > 3 * TURN_US:
                self._rest_until_us = begun_us + took_us + min(took_us, REST_US)
        if self._to_send:
            self._plan_turns(0)
        elif self._to_do or (self.parking.has_line() and not self.parking.is_full()):
            self._plan_turns(max(TURN_US, self._rest_until_us - self.reactor.now_us()))

    # Long answers

    def work_off(self, exchange: Exchange, steps: Generator[None, None, None]) -> None:
        """Run the steps of a request in the background. One such request runs at a time."""
        self._long[exchange] = steps
        if len(self._long) == 1:
            self.reactor.background("other", steps, LONG_SHARE, self._worked_off)

    def _worked_off(self) -> None:
        del self._long[next(iter(self._long))]
        for steps in self._long.values():
            self.reactor.background("other", steps, LONG_SHARE, self._worked_off)
            break

    # Stalls

    def watch_for_stalls(self) -> None:
        if self._sweep is None:
            self._sweep = self.reactor.call_at(self.reactor.now_us() + SWEEP_MS * 1000, self._sweep_stalls)

    def _sweep_stalls(self) -> None:
        """Close stalled connections that hold memory."""
        self._sweep = None
        now_us = self.reactor.now_us()
        pressed = bool(self._is_waiting)
        held = self.arena.reserved_bytes(MemoryClass.FETCH)
        short = 2 * held > self.arena.limit_bytes(MemoryClass.FETCH)
        watched = [c for c in self.connections if c.frame_missing or c.writing]
        seen: dict[Connection, tuple[int, int, int]] = {}
        for connection in watched:
            missing, head = connection.frame_missing, connection.outbox.head
            before = self._seen.get(connection)
            if before is None or before[:2] != (missing, head):
                before = (missing, head, now_us)
            seen[connection] = before
            idle_ms = (now_us - before[2]) // 1000
            if missing and now_us - connection.received_us >= self.stall_ms * 1000:
                limit = 0  # its frame began so long ago, however little is sent again and again
            elif missing:
                limit = PRESSED_STALL_MS
                if not pressed:
                    continue
            elif connection.owed and self.owed > self.owed_max:
                limit = PRESSED_STALL_MS
            else:
                limit = SHORT_STALL_MS if short else self.idle_ms
            if idle_ms >= limit:
                self._stalled.inc(1)
                del seen[connection]
                if self._quiet.allows():
                    what = "did not send a request to its end" if missing else "takes no answers"
                    who, more = f"{connection.host}:{connection.port}", self._quiet.left_out()
                    log.warning("closed the connection of %s: it %s%s", who, what, more)
                connection.close()
        self._seen = seen
        if self._is_waiting:
            self._admit()
        if seen or self._is_waiting:
            self.watch_for_stalls()

    def _watch_idle(self) -> None:
        """Close connections without a request for ``idle_ms``, checked four times in that span."""
        now_us = self.reactor.now_us()
        fresh: dict[Connection, tuple[int, int]] = {}
        for connection in list(self.connections):
            frames, since_us = self._idle_seen.get(connection, (-1, 0))
            if frames != connection.frames or connection.exchanges:
                fresh[connection] = (connection.frames, now_us)
            elif now_us - since_us < self.idle_ms * 1000:
                fresh[connection] = (frames, since_us)
            else:
                self._idle_closed.inc()
                connection.close()
        self._idle_seen = fresh
        again_us = now_us + self.idle_ms * 250
        self._idle_sweep = self.reactor.call_at(again_us, self._watch_idle) if self.connections else None

"""Sends probes to the seeds until the formation of the cluster has an outcome.

A pass asks every seed that has not answered in this round, all at once; a new pass starts `PASS_US` after the last one.
Each question is a connection of its own, which ends with the answer or after `ANSWER_TIMEOUT_US`. A seed that is down,
refuses, or says something else is asked again in the next pass, for ever; one line says which seeds are awaited when
that changes, and every `REMIND_US`.
"""

import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from millstream.errors import MillstreamError
from millstream.peers.formation import Formation, Outcome
from millstream.peers.frames import FrameKind
from millstream.peers.hello import Seed, decode_probe, encode_probe
from millstream.peers.receiving import FirstFrame
from millstream.peers.secured import OpeningKind, PeerTls, encode_opening
from millstream.secure.words import say
from millstream.shard.reactor import Reactor, Timer
from millstream.telemetry.log import RateLimit, log

PASS_US: Final = 100_000
ANSWER_TIMEOUT_US: Final = 3_000_000
REMIND_US: Final = 15_000_000

ANSWER_BYTES_MAX: Final = 64 << 10
_failures: Final = RateLimit(per_minute=6)


class Probing:
    """The questions of one broker.

    Lifecycle: ``start`` once; ``done`` is called once, nothing is open then. Process: one with a reactor and
    no shard. Invariants: every question that is open is in ``_open``.
    """

    def __init__(
        self, reactor: Reactor, formation: Formation, done: Callable[[Outcome], None], tls: PeerTls | None = None
    ) -> None:
        self._tls = tls
        self._reactor = reactor
        self._formation = formation
        self._done = done
        self._open: set[_Question] = set()
        self._awaited: tuple[Seed, ...] = ()
        self._said_us = 0
        self._over = False

    def start(self) -> None:
        """Start the next pass."""
        if self._over:
            return
        busy = {question.seed for question in self._open}
        for seed in self._formation.unanswered:
            if seed not in busy:
                self._open.add(_Question(self._reactor, seed, self._formation, self._ended, self._tls))
        self._reactor.call_later(PASS_US, self.start)
        self._remind()

    def _ended(self, question: "_Question") -> None:
        self._open.discard(question)
        outcome = None if self._over else self._formation.outcome()
        if outcome is not None:
            self._over = True
            for other in list(self._open):
                other.close()
            self._done(outcome)

    def _remind(self) -> None:
        awaited = self._formation.unanswered
        now_us = self._reactor.now_us()
        if self._formation.round == 0 and self._said_us and now_us - self._said_us > REMIND_US:
            shown = ", ".join(f"{seed.host}:{seed.port}" for seed in awaited)
            log.info("waits for the seeds %s: a new cluster is formed when all of them answer", shown)
            self._said_us = now_us
        self._said_us = self._said_us or now_us


class _Question:
    """One connection to one seed.

    Lifecycle: starts when it is made, ends with ``ended``, unless it is closed before.
    """

    def __init__(
        self,
        reactor: Reactor,
        seed: Seed,
        formation: Formation,
        ended: Callable[["_Question"], None],
        tls: PeerTls | None,
    ) -> None:
        self.seed = seed
        self._tls = tls
        self._handshakes = False
        self._reactor = reactor
        self._formation = formation
        self._asked_in = formation.round
        self._ended = ended
        self._socket: Any = None  # a socket, or a TlsSocket around it
        self._connecting = False
        self._answer = FirstFrame(ANSWER_BYTES_MAX)
        self._closed = False
        self._timer: Timer = reactor.call_later(ANSWER_TIMEOUT_US, self._end)
        reactor.resolve(seed.host, seed.port, self._resolved)

    def close(self) -> None:
        """End without a word."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        sock = self._socket
        if sock is not None:
            if self._connecting:
                self._reactor.remove_writer(sock.fileno())
            else:
                self._reactor.remove_reader(sock.fileno())
            sock.close()

    def _resolved(self, found: tuple[int, tuple[object, ...]] | OSError) -> None:
        if self._closed:
            return
        if isinstance(found, OSError):
            self._end()
            return
        family, address = found
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        if sock.connect_ex(address) not in (0, errno.EINPROGRESS):
            sock.close()
            self._end()
            return
        self._socket = sock
        self._connecting = True
        self._reactor.add_writer(sock.fileno(), self._connected)

    def _connected(self) -> None:
        sock = self._socket
        assert sock is not None
        self._reactor.remove_writer(sock.fileno())
        self._connecting = False
        self._reactor.add_reader(sock.fileno(), self._on_readable)
        try:
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            if self._tls is None:
                sock.sendmsg(encode_probe(self._formation.probe))
            else:
                self._socket = self._tls.dial(sock, self.seed.host, encode_opening(OpeningKind.PROBE))
                self._handshakes = True
                self._on_readable()
        except OSError:
            self._end()

    def _on_readable(self) -> None:
        assert self._socket is not None
        try:
            if self._handshakes:
                if not self._socket.handshake():
                    return
                self._handshakes = False
                self._socket.sendmsg(encode_probe(self._formation.probe))
            frame = self._answer.receive(self._socket)
            while frame is None:
                if self._tls is None:
                    return
                frame = self._answer.receive(self._socket)
            kind, head = frame
            if kind is FrameKind.PROBE_ANSWER:
                self._formation.answered(self.seed, decode_probe(head), self._asked_in)
        except BlockingIOError:
            return
        except MillstreamError as error:
            log.warning("%s:%d answers no question of a broker: %s", self.seed.host, self.seed.port, error.message)
        except ssl.SSLError as error:
            if _failures.allows():
                more = _failures.left_out()
                log.warning("TLS failed with %s:%d: %s%s", self.seed.host, self.seed.port, say(error), more)
        except (OSError, EOFError):
            pass  # asked again in the next pass
        self._end()

    def _end(self) -> None:
        if not self._closed:
            self.close()
            self._ended(self)

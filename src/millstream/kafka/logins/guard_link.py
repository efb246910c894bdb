"""A shard's link to the guard, the process that tests passwords and tokens (``app.guard``).

::

    shard ──(number, user, password, verifier)──► guard ──(number, verdict)──► shard
    shard ──(number, token)──►                            ◄── number 0: a guard has started

Messages travel over a socket pair that keeps their bounds. A guard that dies is replaced by the supervisor; the new one
says so, and every question without an answer is asked again: a login waits, and nothing else notices. Questions are
bounded by the logins of the shard (``kafka.logins.logins``); what the socket does not take now waits here.
"""

import socket
from collections.abc import Callable
from typing import Final

import msgspec

from millstream.secure.tokens.rules import Verdict
from millstream.shard.reactor import Reactor
from millstream.wire.sasl import ScramMechanism, Verifier

MESSAGE_BYTES_MAX: Final = 128 << 10


class PasswordQuestion(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Whether ``password`` is the one of ``verifier``."""

    number: int
    user: str
    mechanism: int
    password: str
    verifier: Verifier

    def __repr__(self) -> str:
        return f"PasswordQuestion({self.number})"


class TokenQuestion(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Who ``token`` is about. With a ``nonce`` it is the ID token of that sign-in, of a person."""

    number: int
    token: str
    nonce: str = ""

    def __repr__(self) -> str:
        return f"TokenQuestion({self.number})"


Done = Callable[[Verdict], None]
"""Gets the answer in a later turn."""

encode_question = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(PasswordQuestion | TokenQuestion).decode
encode_answer = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(tuple[int, Verdict]).decode

GREETING: Final = (0, Verdict())


class GuardLink:
    """The questions of one shard. Lifecycle: as long as the shard. Shard: its own."""

    def __init__(self, reactor: Reactor, channel: socket.socket) -> None:
        self._reactor = reactor
        self._channel = channel
        self._number = 0
        self._asked: dict[int, tuple[bytes, Done]] = {}
        self._unsent: list[int] = []
        channel.setblocking(False)
        reactor.add_reader(channel.fileno(), self._on_readable)

    def test_password(
        self, user: str, password: str, mechanism: ScramMechanism, verifier: Verifier, done: Done
    ) -> None:
        """Ask whether it is the user's password."""
        self._number += 1
        self._ask(PasswordQuestion(self._number, user, mechanism.number, password, verifier), done)

    def test_token(self, token: str, done: Done, nonce: str = "") -> None:
        """Ask who the token is about; with a ``nonce`` who signed in."""
        self._number += 1
        self._ask(TokenQuestion(self._number, token, nonce), done)

    def _ask(self, question: PasswordQuestion | TokenQuestion, done: Done) -> None:
        self._asked[question.number] = (encode_question(question), done)
        self._send(question.number)

    def _send(self, number: int) -> None:
        try:
            self._channel.send(self._asked[number][0])
        except OSError:  # full, or between two guards
            self._unsent.append(number)

    def _on_readable(self) -> None:
        try:
            data = self._channel.recv(MESSAGE_BYTES_MAX)
        except OSError:
            return
        if not data:  # the supervisor has ended, and so does this process
            self._reactor.remove_reader(self._channel.fileno())
            return
        number, verdict = decode_answer(data)
        if number == GREETING[0]:
            again, self._unsent = list(self._asked), []
        else:
            again, self._unsent = self._unsent, []
        found = self._asked.pop(number, None)
        for each in again:
            if each in self._asked:
                self._send(each)
        if found is not None:
            found[1](verdict)

"""``python -m millstream.app.guard_main RULES FD...``: the process that tests passwords and tokens (``app.guard``).

RULES is what is expected of tokens, as JSON (``GuardRules``). Each FD is a socket to one shard. The process
takes one question of each shard in turn, so that one shard's logins do not hold up another's, and ends when the
supervisor and all shards have closed theirs. A token whose key is not known waits until the keys have been read again;
how many wait is bounded by the logins of the shards.
"""

import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.kafka.logins.guard_link import (
    GREETING,
    MESSAGE_BYTES_MAX,
    PasswordQuestion,
    TokenQuestion,
    decode_question,
    encode_answer,
)
from millstream.secure.tokens.rules import GuardRules, TokenRules, Verdict
from millstream.shard.process import rename
from millstream.telemetry.log import log
from millstream.wire.sasl import SCRAM_BY_NUMBER, opens

if TYPE_CHECKING:
    from millstream.secure.tokens.keys import KeySet
    from millstream.secure.tokens.source import KeySource

_NO_KEY: Final = "the token's key is not one of the issuer's"
_NO_KEYS: Final = "the issuer's keys could not be read so far"


class Tokens:
    """The tests of the tokens of one issuer. Lifecycle: as long as the process."""

    def __init__(self, rules: TokenRules, source: "KeySource") -> None:
        from millstream.secure.tokens import verify

        self._verify = verify
        self._rules = rules
        self._source = source
        self._waiting: list[tuple[socket.socket, TokenQuestion]] = []

    def answer(self, channel: socket.socket, question: TokenQuestion, *, last: bool = False) -> None:
        """Answer, or wait for the keys; the ``last`` time there is no waiting."""
        verdict = self._verdict(question, self._source.keys)
        if isinstance(verdict, str):
            if not last and self._source.ask():
                self._waiting.append((channel, question))
                return
            verdict = Verdict(reason=verdict)
        channel.send(encode_answer((question.number, verdict)))

    def _verdict(self, question: TokenQuestion, keys: "KeySet | None") -> Verdict | str:
        """The verdict; what is missing, if that may come."""
        if keys is None:
            return _NO_KEYS
        try:
            if question.nonce:
                return self._verify.verify_sign_in(question.token, question.nonce, keys, self._rules, time.time())
            return self._verify.verify(question.token, keys, self._rules, time.time())
        except self._verify.UnknownKey:
            return _NO_KEY

    def on_keys(self) -> None:
        """The keys were read, or could not be: answer those that wait."""
        os.eventfd_read(self._source.fd)
        waiting, self._waiting = self._waiting, []
        for channel, question in waiting:
            try:
                self.answer(channel, question, last=True)
            except OSError:
                continue  # its shard has ended


def main() -> int:
    """Answer until all shards have closed their ends."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the supervisor decides when to stop
    rename("guard")
    log.who("guard")
    waiting = select.poll()
    rules = msgspec.json.decode(sys.argv[1], type=GuardRules)
    by_keys: dict[int, Tokens] = {}
    tokens, sign_ins = (_issuer(each, by_keys) for each in (rules.tokens, rules.sign_ins))
    for fd in by_keys:
        waiting.register(fd, select.POLLIN)
    channels = {int(fd): socket.socket(fileno=int(fd)) for fd in sys.argv[2:]}
    for fd, channel in channels.items():
        channel.setblocking(True)
        channel.send(encode_answer(GREETING))
        waiting.register(fd, select.POLLIN)
    while channels:
        for fd, _ in waiting.poll():
            if fd in by_keys:
                by_keys[fd].on_keys()
                continue
            try:
                answered = _answer(channels[fd], tokens, sign_ins)
            except OSError:
                answered = False
            if not answered:
                waiting.unregister(fd)
                channels.pop(fd).close()
    return 0


def _issuer(rules: TokenRules | None, by_keys: dict[int, Tokens]) -> Tokens | None:
    """The tests by ``rules``. Their keys are read from now on; ``by_keys`` gets them by the descriptor that says so."""
    if rules is None:
        return None
    from millstream.secure.tokens.source import KeySource

    source = KeySource(rules)
    source.start()
    found = by_keys[source.fd] = Tokens(rules, source)
    return found


def _answer(channel: socket.socket, tokens: Tokens | None, sign_ins: Tokens | None) -> bool:
    """Answer one question; False if the shard has ended."""
    data = channel.recv(MESSAGE_BYTES_MAX)
    if not data:
        return False
    question = decode_question(data)
    if isinstance(question, PasswordQuestion):
        right = opens(SCRAM_BY_NUMBER[question.mechanism], question.password, question.verifier)
        why = f"wrong password, or no such user: {question.user!r}"
        verdict = Verdict(question.user) if right else Verdict(reason=why)
        channel.send(encode_answer((question.number, verdict)))
    else:
        issuer = sign_ins if question.nonce else tokens
        if issuer is None:  # HTTP takes any Authorization header
            channel.send(encode_answer((question.number, Verdict(reason="this broker takes no tokens"))))
        else:
            issuer.answer(channel, question)
    return True


if __name__ == "__main__":
    sys.exit(main())

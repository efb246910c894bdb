"""Questions to the shards from the HTTP thread.

The control channels belong to the supervisor's reactor; a thread puts its question in a queue, rings a bell and waits
for the answers of all shards. Without an answer in time it gets ``Unavailable``, and the thread is free again.
"""

import os
import threading
from collections import deque
from typing import Any, Final

from millstream.errors import MillstreamError, Unavailable
from millstream.shard.control import ControlEnd
from millstream.shard.reactor import Reactor

TIMEOUT_US: Final = 5_000_000


class _Question:
    def __init__(self, name: str, arguments: Any, timeout_us: int, shards: int) -> None:
        self.name = name
        self.arguments = arguments
        self.timeout_us = timeout_us
        self.answers: list[Any] = [None] * shards
        self.missing = shards
        self.done = threading.Event()


class ShardQueries:
    """Lifecycle: made on the reactor's thread; ``ask_all`` is for other threads."""

    def __init__(self, reactor: Reactor, controls: list[ControlEnd]) -> None:
        self._controls = controls
        self._questions: deque[_Question] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.add_reader(self._bell, self._rung)

    def ask_all(self, name: str, arguments: Any, timeout_us: int = TIMEOUT_US) -> list[Any]:
        """The answers of all shards, by shard.

        Raises:
            MillstreamError: what the first shard that refused said, or ``Unavailable`` when one was silent.
        """
        question = _Question(name, arguments, timeout_us, len(self._controls))
        self._questions.append(question)
        os.eventfd_write(self._bell, 1)
        if not question.done.wait(2 * timeout_us / 1_000_000):
            raise Unavailable(f"no answer to {name} from all shards")
        for answer in question.answers:
            if isinstance(answer, MillstreamError):
                raise answer
        return question.answers

    def _rung(self) -> None:
        os.eventfd_read(self._bell)
        while self._questions:
            question = self._questions.popleft()
            for shard, control in enumerate(self._controls):

                def answered(answer: Any, question: _Question = question, shard: int = shard) -> None:
                    question.answers[shard] = answer
                    question.missing -= 1
                    if not question.missing:
                        question.done.set()

                control.ask(question.name, question.arguments, answered, question.timeout_us)

"""Questions to the shards from the HTTP thread.

The control channels belong to the supervisor's reactor; a thread puts its question in a queue, rings a bell and waits
for the answers of all shards. Without an answer in time it gets ``Unavailable``, and the thread is free again.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from millstream.errors import MillstreamError, Unavailable
from millstream.shard.control import ControlEnd
from millstream.shard.reactor import Reactor

TIMEOUT_US: Final = 5_000_000


class _Question:
    def __init__(self, name: str, arguments: Any, timeout_us: int, shards: Sequence[int]) -> None:
        self.name = name
        self.arguments = arguments
        self.timeout_us = timeout_us
        self.answers: dict[int, Any] = dict.fromkeys(shards)
        self.missing = len(shards)
        self.done = threading.Event()


class _Job:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self.result = self.work()
        except MillstreamError as error:
            self.result = error
        finally:
            self.done.set()


class ShardQueries:
    """Lifecycle: made on the reactor's thread; ``ask_all`` and ``on_reactor`` are for other threads."""

    def __init__(self, reactor: Reactor, controls: list[ControlEnd]) -> None:
        self._controls = controls
        self._questions: deque[_Question] = deque()
        self._jobs: deque[_Job] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reactor.add_reader(self._bell, self._rung)

    def ask_all(self, name: str, arguments: Any, timeout_us: int = TIMEOUT_US) -> list[Any]:
        """The answers of all shards, by shard.

        Raises:
            MillstreamError: what the first shard that refused said, or ``Unavailable`` when one was silent.
        """
        return self._ask(_Question(name, arguments, timeout_us, range(len(self._controls))))

    def ask_one(self, name: str, arguments: Any, timeout_us: int = TIMEOUT_US) -> Any:
        """The answer of shard 0, which has the controller and every shard's metadata.

        Raises:
            MillstreamError: what it said, or ``Unavailable`` when it was silent.
        """
        return self._ask(_Question(name, arguments, timeout_us, (0,)))[0]

    def _ask(self, question: _Question) -> list[Any]:
        self._questions.append(question)
        os.eventfd_write(self._bell, 1)
        if not question.done.wait(2 * question.timeout_us / 1_000_000):
            raise Unavailable(f"no answer to {question.name} from all shards")
        answers = list(question.answers.values())
        for answer in answers:
            if isinstance(answer, MillstreamError):
                raise answer
        return answers

    def on_reactor(self, work: Callable[[], Any], timeout_us: int = TIMEOUT_US) -> Any:
        """Run ``work`` on the supervisor's reactor, and return what it returns or raise what it raises."""
        job = _Job(work)
        self._jobs.append(job)
        os.eventfd_write(self._bell, 1)
        if not job.done.wait(timeout_us / 1_000_000):
            raise Unavailable("the supervisor is busy; try again")
        if isinstance(job.result, MillstreamError):
            raise job.result
        return job.result

    def _rung(self) -> None:
        os.eventfd_read(self._bell)
        while self._jobs:
            self._jobs.popleft().run()
        while self._questions:
            question = self._questions.popleft()
            for shard in question.answers:

                def answered(answer: Any, question: _Question = question, shard: int = shard) -> None:
                    question.answers[shard] = answer
                    question.missing -= 1
                    if not question.missing:
                        question.done.set()

                self._controls[shard].ask(question.name, question.arguments, answered, question.timeout_us)

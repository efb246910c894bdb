"""Commands that a shard has sent to a helper process, and who waits for each reply.

``ask`` keeps the callbacks under the command's id, and ``reply`` calls back with the reply of that id, once. A reply of
another type than the caller expects is an assertion failure, because both processes are forks of one program. A command
that cannot be carried out is answered with a failure: ``fail`` hands it to the caller's ``failed``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NewType, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

CallId = NewType("CallId", int)
"""Number of a command that has a reply, unique in one link."""


class Numbered(Protocol):
    """A command with a reply, or a reply."""

    @property
    def id(self) -> CallId: ...


C = TypeVar("C")
F = TypeVar("F")
N = TypeVar("N", bound=Numbered)
R = TypeVar("R", bound=Numbered)


class HelperLink(Generic[C, F]):
    """The calls of one shard to a helper, on its reactor. ``C`` is what may be sent, ``F`` is a failure.

    Invariant: an id is in ``calls`` from ``ask`` until its reply, its failure or ``fail_all``.
    """

    def __init__(self, send: Callable[[C], None]) -> None:
        self.send = send
        """Sends a command that has no reply."""
        self.calls: dict[CallId, tuple[type[Any], Callable[[Any], None], Callable[[F], None]]] = {}
        """Type of the reply, and the callbacks for it and for a failure."""
        self._next_id = 1

    def next_id(self) -> CallId:
        """The id for a command that is about to be made."""
        number = CallId(self._next_id)
        self._next_id += 1
        return number

    def ask(self, command: Any, reply: type[R], done: Callable[[R], None], failed: Callable[[F], None]) -> None:
        """Send a command that has an id of ``next_id``. Later ``done`` is called with the reply, or ``failed``."""
        self.calls[command.id] = reply, done, failed
        self.send(command)

    def reply(self, reply: Numbered) -> None:
        """A reply has arrived."""
        kind, done, _ = self.calls.pop(reply.id)
        if type(reply) is not kind:
            raise AssertionError(f"a helper answers {kind.__name__} {reply.id} with {type(reply).__name__}")
        done(reply)

    def fail(self, number: CallId, failure: F) -> None:
        """A command could not be carried out."""
        self.calls.pop(number)[2](failure)

    def fail_all(self, failure: Callable[[CallId], F]) -> None:
        """The helper is stopped: nothing that was asked will be answered."""
        calls, self.calls = self.calls, {}
        for number, (_, _, failed) in calls.items():
            failed(failure(number))

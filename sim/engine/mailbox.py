"""The mailbox of a broker with one shard (`shard.mailbox.Mailbox`): calls are carried out and answered later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.errors import MillstreamError, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.engine.local_storage import LocalReactor


class _Reply:
    """Where a handler gives its answer."""

    on_cancel: Callable[[], None]

    def __init__(self, done: Callable[[bytes | MillstreamError], None]) -> None:
        self.send = self.fail = done


class LocalMailbox:
    """Lifecycle: made with the shard; handlers are registered before the reactor runs."""

    def __init__(self, reactor: LocalReactor) -> None:
        self._reactor = reactor
        self._handlers: dict[int, Callable[[int, bytes, Any], None]] = {}

    def serve(self, method: int, handler: Callable[[int, bytes, Any], None]) -> None:
        """Answer calls of ``method``."""
        self._handlers[method] = handler

    def call(
        self, to: int, method: int, payload: bytes, got: Callable[[bytes | MillstreamError], None], timeout_us: int
    ) -> None:
        """Call ``method`` here."""
        soon, open_ = self._reactor.call_soon, True

        def answer(result: bytes | MillstreamError) -> None:
            nonlocal open_
            if open_:
                open_ = False
                timer.cancel()
                soon(got, result)

        def carry_out() -> None:
            try:
                self._handlers[method](to, payload, _Reply(answer))
            except MillstreamError as error:
                answer(error)

        timer = self._reactor.call_later(timeout_us, lambda: answer(OutcomeUnknown("no answer in time")))
        soon(carry_out)

    def tell(self, to: int, method: int, payload: bytes) -> None:
        """Call ``method`` here, without an answer."""
        self._reactor.call_soon(self._handlers[method], to, payload, _Reply(_nothing))


def _nothing(_: bytes | MillstreamError) -> None:
    """The caller takes no answer."""

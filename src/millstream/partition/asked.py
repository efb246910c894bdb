"""A request to a partition that is answered later: exactly once, even if its verb raises.

::

    asked = Asked(partition, "read", done, refusal)
    asked.run(step, …)      step calls ``asked(result)``, now or in a later turn

A step that raises ends the partition (``partition.boundary``), and the request gets its refusal. So does every request
that is still open when the partition fails for another reason: the partition knows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.partition.partition import Partition

Result = TypeVar("Result")


class Asked(Generic[Result]):
    """One request. Called with the result it is answered, once; what comes later is dropped."""

    __slots__ = ("_done", "_partition", "_refusal", "_verb")

    def __init__(self, partition: Partition, verb: str, done: Callable[[Result], None], refusal: Result) -> None:
        self._partition = partition
        self._verb = verb
        self._done: Callable[[Result], None] | None = done
        self._refusal = refusal
        partition.waiters.requests.add(self)

    def __call__(self, result: Result) -> None:
        self._partition.waiters.requests.discard(self)
        done, self._done = self._done, None
        if done is not None:
            done(result)

    def run(self, step: Callable[..., None], *arguments: object) -> None:
        """Run a step of the verb behind the boundary."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - the boundary
            self._partition.failed(self._verb, error)
            self.refuse()

    def refuse(self) -> None:
        """Answer that the partition has failed, if there was no answer yet."""
        self(self._refusal)

    @property
    def is_open(self) -> bool:
        """Whether it was not answered yet."""
        return self._done is not None

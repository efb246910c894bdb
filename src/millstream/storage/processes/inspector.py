"""The worker's side of batch inspection: batches in the arena are looked at, and written anew where they stand.

What a batch becomes may be larger than what it was; then it is kept here until the reactor has found memory for it and
collects it. The bytes are a producer's: whatever they make the codecs do is an answer about that batch, never the end
of the worker. One thread's, as a lane's commands are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.model.error_code import ErrorCode
from millstream.storage.messages.commands import Collect, Done, Inspect, Inspected
from millstream.wire.inspection import Refused, inspect_batch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Inspector:
    """See the module. Lifecycle: the worker's. Memory: batches that wait to be collected, which the reactor bounds."""

    def __init__(self, arena: memoryview) -> None:
        self._arena = arena
        self._kept: dict[int, bytes] = {}

    def inspect(self, command: Inspect) -> Inspected:
        """Judge one batch and leave the one to store in its place, if it fits there."""
        batch = b"".join(self._views(command.spans))
        try:
            out = inspect_batch(batch, command.rules)
        except Refused as refused:
            return Inspected(command.id, int(refused.code), 0, 0, *refused.refusal)
        except Exception as error:  # noqa: BLE001  # bytes of a stranger: what they break is their batch
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            return Inspected(command.id, int(code), 0, 0, f"the batch cannot be opened: {error!r}", [])
        if out is None:
            return Inspected(command.id, 0, len(batch), 0, "", [])
        if len(out) > len(batch):
            self._kept[command.id] = out
            return Inspected(command.id, 0, 0, len(out), "", [])
        self._put(out, command.spans)
        return Inspected(command.id, 0, len(out), 0, "", [])

    def collect(self, command: Collect) -> Done:
        """Hand over a batch that was kept."""
        self._put(self._kept.pop(command.inspect), command.spans)
        return Done(command.id)

    def _put(self, batch: bytes, spans: list[int]) -> None:
        at = 0
        view = memoryview(batch)
        for place in self._views(spans):
            part = view[at : at + len(place)]
            place[: len(part)] = part
            at += len(part)

    def _views(self, spans: list[int]) -> Iterator[memoryview]:
        ends = iter(spans)
        return (self._arena[start:end] for start, end in zip(ends, ends, strict=True))

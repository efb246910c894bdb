"""The worker's side of batch inspection: checks batches in the arena, and rewrites them in place.

A rewritten batch may be larger than the original. It is then kept here until the reactor has memory for it and collects
it. The bytes come from a producer: a codec that fails on them refuses that batch, and never ends the worker.
Used by one thread, that of its lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.format.events.from_records import inspect
from millstream.model.error_code import ErrorCode
from millstream.storage.messages.commands import Collect, Done, Inspect, Inspected
from millstream.wire.inspection import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator


class Inspector:
    """Inspects batches for the worker. The reactor bounds the memory of batches that wait for their collection."""

    def __init__(self, arena: memoryview) -> None:
        self._arena = arena
        self._kept: dict[int, bytes] = {}

    def inspect(self, command: Inspect) -> Inspected:
        """Check one batch, and leave the batch to store in its place if it fits."""
        batch = b"".join(self._views(command.spans))
        try:
            out = inspect(batch, command.rules)
        except Refused as refused:
            return Inspected(command.id, int(refused.code), 0, 0, *refused.refusal)
        except Exception as error:  # noqa: BLE001  # a producer's bytes may break a codec; only their batch is refused
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
        """Copy a kept batch into the arena."""
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

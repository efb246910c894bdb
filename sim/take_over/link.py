"""The archive process of a simulated broker: one command of a lane after the other, each in a while."""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.helper.link import CallId
from millstream.model.error_code import ErrorCode
from millstream.model.replication import replica_id
from millstream.tiers.messages import AppendEntry, EndLives, Examine, Failed, Put, Replace, Restore, Share, TrimEntries
from millstream.tiers.packing import pack
from millstream.tiers.process import ArchiveWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.manifest import ArchiveId
    from millstream.model.cluster import NodeId
    from millstream.tiers.log_worker import LogWorker
    from sim.take_over.broker import Broker

_NO_ID: Final = CallId(0)
"""Replies are matched by the order in a lane."""


def _at_once(_: int) -> None:
    """An upload takes no time of its own."""


_PACE: Final[Any] = SimpleNamespace(spend=_at_once)


class Link:
    """As `tiers.link.ArchiveLink`. A command may take effect after its broker has died."""

    def __init__(self, broker: Broker, worker: LogWorker) -> None:
        self._broker = broker
        self._worker = worker
        assert broker.shard is not None
        self._arena = broker.shard.arena.view
        self._life = broker.life
        store: Any = broker.world.store
        self._changes = ArchiveWorker(store, store, broker.disk, self._arena, 1e15)
        self._queues: dict[str, deque[tuple[Any, Callable[[Any], None]]]] = {"log": deque(), "changes": deque()}

    def append_entry(self, number: int, parts: list[Any], done: Callable[[MillstreamError | None], None]) -> None:
        self._send("log", AppendEntry(_NO_ID, number, parts), lambda reply: done(_error(reply)))

    def put(self, key: str, data: bytes, done: Callable[[MillstreamError | None], None]) -> None:
        self._send("changes", Put(_NO_ID, key, data), lambda reply: done(_error(reply)))

    def trim_entries(self, number: int, end: int, done: Callable[[MillstreamError | None], None]) -> None:
        self._send("changes", TrimEntries(_NO_ID, number, end), lambda reply: done(_error(reply)))

    def end_lives(self, node: NodeId, done: Callable[[MillstreamError | None], None]) -> None:
        self._send("changes", EndLives(_NO_ID, node), lambda reply: done(_error(reply)))

    def examine(self, key: str, done: Callable[[Any], None]) -> None:
        self._send("changes", Examine(_NO_ID, key), lambda reply: done(_error(reply) or reply))

    def replace(self, key: str, data: bytes, expected: str, done: Callable[[Any], None]) -> None:
        self._send("changes", Replace(_NO_ID, key, data, expected), lambda reply: done(_error(reply) or reply))

    def share(self, command: Share, done: Callable[[MillstreamError | None], None]) -> None:
        self._send("changes", command, lambda reply: done(_error(reply)))

    def restore(self, owner: ArchiveId, directory: str, done: Callable[[Any], None]) -> None:
        voters = (replica_id(self._broker.node),)
        self._send("changes", Restore(_NO_ID, owner, directory, voters, time.monotonic_ns()), done)

    def _send(self, lane: str, command: Any, done: Callable[[Any], None]) -> None:
        queue = self._queues[lane]
        queue.append((command, done))
        if len(queue) == 1:
            self._broker.world.later(self._next, lane)

    def _next(self, lane: str) -> None:
        broker, world = self._broker, self._broker.world
        command, done = self._queues[lane][0]
        alive = broker.life == self._life
        if not alive and (isinstance(command, Restore) or world.chance.random() < 0.5):
            return  # the lock of the data directory outlives no process that may write there
        if alive and broker.paused and world.chance.random() < 0.5:
            world.later(self._next, lane)
            return
        reply = self._carry_out(command)
        if alive:
            world.later(self._answer, lane, reply, done)

    def _carry_out(self, command: Any) -> Any:
        try:
            if isinstance(command, Put):
                return self._broker.world.store.put(command.key, [command.data])  # pyright: ignore[reportArgumentType]
            if isinstance(command, Share):
                return pack(self._broker.world.store, command, self._arena, _PACE)
            if isinstance(command, Examine | Replace):
                return self._changes.carry_out(command)
            if isinstance(command, TrimEntries):
                self._broker.world.note("trimmed")
            return self._worker.handlers[type(command)](command)
        except MillstreamError as error:
            return error

    def _answer(self, lane: str, reply: Any, done: Callable[[Any], None]) -> None:
        if self._broker.life != self._life:
            return
        if self._broker.paused:
            self._broker.world.later(self._answer, lane, reply, done)
            return
        queue = self._queues[lane]
        done(reply)
        queue.popleft()
        if queue and self._broker.life == self._life:
            self._broker.world.later(self._next, lane)


def _error(reply: Any) -> MillstreamError | None:
    """As `ArchiveLink` gives it."""
    if isinstance(reply, Failed):
        return Unavailable(reply.message)
    if isinstance(reply, Rejected) and reply.code is not ErrorCode.STALE_BROKER_EPOCH:
        return Unavailable(reply.message)
    return reply if isinstance(reply, MillstreamError) else None

"""The broker's loggers for Kafka's tools: ``root``, and one for each room (`telemetry.log`), on all shards.

A level that a client sets ends automatically after ``LEVEL_S``; removing it ends it now. The setting
``logging.level`` is the level of ``root`` at start. Neither affects the supervisor's own lines (start, stop, a
process that died).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.core.controller.requests import ConfigChange, ConfigOperation
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.telemetry.log import ROOMS, ROOT, Level, log

LEVEL_S: Final = 600.0
"""How long a level lasts that a client sets."""
SET_LEVEL: Final = 80

LEVELS: Final = {level.name: level for level in sorted(Level, key=lambda level: level.name)}


class _Change(NamedTuple):
    """A level of a logger; None takes it away."""

    logger: str
    level: Level | None


class Loggers:
    """The loggers of one shard.

    Lifecycle: made with the shard. Shard: one each.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        shard.mailbox.serve(SET_LEVEL, self._serve_set_level)

    def levels(self) -> dict[str, str]:
        """The names of the levels of all loggers, ``root`` first."""
        return {name: level.name for name, (level, _) in log.levels().items()}

    def alter(self, changes: Iterable[ConfigChange], *, validate_only: bool) -> None:
        """Set levels on every shard. Rejected, with nothing changed, if one of them is invalid."""
        wanted = [self._judged(change) for change in changes]
        if validate_only:
            return
        for one in wanted:
            payload = f"{one.logger} {one.level.name if one.level is not None else ''}".encode()
            for shard in range(self._shard.count):
                if shard != self._shard.id:
                    self._shard.mailbox.tell(shard, SET_LEVEL, payload)
            self._set(one)

    def _judged(self, change: ConfigChange) -> _Change:
        if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            operation = ConfigOperation(change.operation).name
            raise Rejected(
                f"{operation} operation is not allowed for the BROKER_LOGGER resource", ErrorCode.INVALID_REQUEST
            )
        if change.name != ROOT and change.name not in ROOMS:
            raise Rejected(f"Logger {change.name} does not exist!", ErrorCode.INVALID_CONFIG)
        if change.operation != ConfigOperation.SET:
            if change.name == ROOT:
                raise Rejected("Removing the log level of the root logger is not allowed", ErrorCode.INVALID_REQUEST)
            return _Change(change.name, None)
        level = LEVELS.get(change.value or "")
        if level is None:
            raise Rejected(
                f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(LEVELS)}",
                ErrorCode.INVALID_CONFIG,
            )
        return _Change(change.name, level)

    def _serve_set_level(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        logger, _, level = payload.decode().partition(" ")
        self._set(_Change(logger, LEVELS[level] if level else None))

    def _set(self, change: _Change) -> None:
        log.set_for(change.logger, change.level, LEVEL_S)
        if change.level is not None:
            log.info("lines of %s from %s on are written for %g s", change.logger, change.level.name, LEVEL_S)

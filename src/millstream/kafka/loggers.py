"""The broker's loggers for Kafka's tools: a single one, ``root``, whose level all shards share.

A level that a client sets lasts until the broker stops, as in Kafka. The setting ``logging.level`` is the level at
start. It does not affect the supervisor's own lines (start, stop, a process that died).
"""

from collections.abc import Iterable
from typing import Final

from millstream.core.controller.requests import ConfigChange, ConfigOperation
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.telemetry.log import Level, log

ROOT: Final = "root"
SET_LEVEL: Final = 80

LEVELS: Final = {level.name: level for level in sorted(Level, key=lambda level: level.name)}


class Loggers:
    """The loggers of one shard.

    Lifecycle: made with the shard. Shard: one each.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        shard.mailbox.serve(SET_LEVEL, self._serve_set_level)

    @property
    def level(self) -> str:
        """The name of the level of ``root``."""
        return log.level.name

    def alter(self, changes: Iterable[ConfigChange], *, validate_only: bool) -> None:
        """Set levels on every shard. Rejected, with nothing changed, if one of them is invalid."""
        wanted = [self._judged(change) for change in changes]
        if wanted and not validate_only:
            for shard in range(self._shard.count):
                if shard != self._shard.id:
                    self._shard.mailbox.tell(shard, SET_LEVEL, wanted[-1].name.encode())
            self._set(wanted[-1])

    def _judged(self, change: ConfigChange) -> Level:
        if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            operation = ConfigOperation(change.operation).name
            raise Rejected(
                f"{operation} operation is not allowed for the BROKER_LOGGER resource", ErrorCode.INVALID_REQUEST
            )
        if change.name != ROOT:
            raise Rejected(f"Logger {change.name} does not exist!", ErrorCode.INVALID_CONFIG)
        if change.operation != ConfigOperation.SET:
            raise Rejected("Removing the log level of the root logger is not allowed", ErrorCode.INVALID_REQUEST)
        level = LEVELS.get(change.value or "")
        if level is None:
            raise Rejected(
                f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(LEVELS)}",
                ErrorCode.INVALID_CONFIG,
            )
        return level

    def _serve_set_level(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self._set(LEVELS[payload.decode()])

    def _set(self, level: Level) -> None:
        if log.level != level:
            log.set_level(level)
            log.info("lines from %s on are written now", level.name)

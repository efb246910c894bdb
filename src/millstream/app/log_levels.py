"""Levels of loggers over HTTP: the supervisor's own log, and those of all shards.

A level is set in the supervisor and in each shard, and ends automatically in each of them. The supervisor's is shown. A
shard that does not answer fails the request, and may have the old level. Helper processes of shards keep the level of
their start.
"""

from typing import Any, Final

import msgspec

from millstream.admin.bodies import LoggerLevel
from millstream.app.shard_queries import ShardQueries
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.shard.control import ControlEnd
from millstream.telemetry.log import ROOMS, ROOT, Level, log

LOGGER: Final = "logger"
"""The question on the control channel."""


def serve_loggers(control: ControlEnd) -> None:
    """Set levels of a shard."""

    def change(arguments: Any, answer: Any) -> None:
        _set(msgspec.convert(arguments, LoggerLevel))
        answer(None)

    control.serve(LOGGER, change)


def show_loggers() -> dict[str, Any]:
    """All loggers."""
    return {
        "loggers": [
            {"logger": name, "level": level.name, "ends_in_s": ends_in_s and round(ends_in_s, 1)}
            for name, (level, ends_in_s) in log.levels().items()
        ]
    }


def set_logger(queries: ShardQueries, asked: LoggerLevel) -> dict[str, Any]:
    """Set a level on all shards; returns all loggers.

    Raises:
        Rejected: there is no such logger.
        Unavailable: a shard does not answer.
    """
    if asked.logger != ROOT and asked.logger not in ROOMS:
        known = ", ".join((ROOT, *ROOMS))
        raise Rejected(f"there is no logger {asked.logger!r}; known are {known}", ErrorCode.INVALID_CONFIG)
    log.info("asked over HTTP for %s", asked)
    queries.ask_all(LOGGER, msgspec.to_builtins(asked))
    _set(asked)
    return show_loggers()


def _set(asked: LoggerLevel) -> None:
    log.set_for(asked.logger, None if asked.level is None else Level[asked.level], asked.minutes * 60)

"""Errors of object stores, below the taxonomy of ``millstream.errors``.

A failed read or listing is ``Unavailable``. A failed change whose effect is unknown is ``OutcomeUnknown``; one that
certainly had none is ``Unavailable``. Each message names the store, the object and what a person can do.
"""

from millstream.errors import Corruption, Rejected, Unavailable
from millstream.model.error_code import ErrorCode


class NotFound(Rejected):
    """There is no such object, or no such bucket."""

    default_code = ErrorCode.KAFKA_STORAGE_ERROR


class Conflict(Rejected):
    """The condition of a ``put`` does not hold: the object is there, is missing, or has changed. Nothing happened."""

    default_code = ErrorCode.KAFKA_STORAGE_ERROR


class Denied(Rejected):
    """The store refuses the credentials, or has none."""

    default_code = ErrorCode.KAFKA_STORAGE_ERROR


class Unsupported(Rejected):
    """The store has no conditional writes. Nothing changed."""

    default_code = ErrorCode.KAFKA_STORAGE_ERROR


class Throttled(Unavailable):
    """The store asks for fewer requests. Nothing changed."""


class ShortRead(Corruption):
    """The store returned fewer bytes than the range has."""

    default_code = ErrorCode.KAFKA_STORAGE_ERROR

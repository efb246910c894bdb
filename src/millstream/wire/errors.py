"""The errors of the wire layer.

``ProtocolError`` is the only exception that bytes from outside can cause. A decoder never lets an ``IndexError``,
``struct.error``, ``UnicodeDecodeError`` or ``MemoryError`` through. The connection that sent the bytes is closed;
nothing else is affected. ``EncodeError`` is the opposite case: a value of ours that the message cannot carry, hence a
defect of the caller. ``BatchError`` concerns one record batch and carries the error code for its partition.
"""

from millstream.errors import MillstreamError, Rejected
from millstream.model.error_code import ErrorCode


class ProtocolError(Rejected):
    """Bytes that are not a Kafka message of the stated API and version."""

    default_code = ErrorCode.INVALID_REQUEST


class UnsupportedVersion(ProtocolError):
    """The API, or that version of it, is not declared."""

    default_code = ErrorCode.UNSUPPORTED_VERSION


class EncodeError(ValueError):
    """A message that cannot be encoded: a number out of range, a null where the version has none, a wrong type."""


class BatchError(MillstreamError):
    """An invalid record batch. ``code`` is the error code of its partition."""

    default_code = ErrorCode.CORRUPT_MESSAGE

"""What the wire layer raises, and nothing else.

``ProtocolError`` is the only exception that bytes from outside can cause: a decoder that reads garbage never lets an
``IndexError``, ``struct.error``, ``UnicodeDecodeError`` or ``MemoryError`` through. The connection that sent the bytes
is closed; nothing else is affected. ``EncodeError`` is the opposite case, a value of ours that the message cannot
carry, and so a defect of the caller. ``BatchError`` is the answer for one record batch and carries the code that the
client is told for its partition.
"""

from millstream.errors import MillstreamError, Rejected
from millstream.model.error_code import ErrorCode


class ProtocolError(Rejected):
    """Bytes that are not a Kafka message of the stated API and version."""

    default_code = ErrorCode.INVALID_REQUEST


class UnsupportedVersion(ProtocolError):
    """The table holds no such API or not that version of it."""

    default_code = ErrorCode.UNSUPPORTED_VERSION


class EncodeError(ValueError):
    """A message that cannot be written: a number out of range, a null where the version has none, a wrong type."""


class BatchError(MillstreamError):
    """A record batch that breaks the format; ``code`` says how a producer is told."""

    default_code = ErrorCode.CORRUPT_MESSAGE

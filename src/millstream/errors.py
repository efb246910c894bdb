"""The one taxonomy of errors.

::

    MillstreamError
    ├── Rejected         the caller broke a rule; trying the same again cannot help
    ├── Retriable        not now: another leader, a throttle, a load in progress
    ├── OutcomeUnknown   it may or may not have been done; never reported as failure
    ├── Unavailable      a resource is gone for now: disk full, object store down
    ├── Corruption       bytes do not match their checksum or format; the log that holds them is fenced
    └── ShuttingDown     the process is on its way out

Expected results per partition travel as values (an ``ErrorCode`` in the answer); exceptions are for a whole request.
Each error carries the Kafka code that the edge answers with.
"""

from millstream.model.error_code import ErrorCode


class MillstreamError(Exception):
    """Root of the taxonomy; ``code`` is what a Kafka client is told, ``message`` what a person reads."""

    default_code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code: ErrorCode = self.default_code if code is None else code


class Rejected(MillstreamError):
    """The caller broke a rule."""

    default_code = ErrorCode.INVALID_REQUEST


class Retriable(MillstreamError):
    """The same request may succeed later or elsewhere."""

    default_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class OutcomeUnknown(MillstreamError):
    """The request may have taken effect; a timeout is the usual cause."""

    default_code = ErrorCode.REQUEST_TIMED_OUT


class Unavailable(MillstreamError):
    """A resource is missing for now; nothing was written."""

    default_code = ErrorCode.KAFKA_STORAGE_ERROR


class Corruption(MillstreamError):
    """Stored or received bytes are not what they claim to be."""

    default_code = ErrorCode.CORRUPT_MESSAGE


class ShuttingDown(MillstreamError):
    """The broker is stopping."""

    default_code = ErrorCode.NOT_LEADER_OR_FOLLOWER

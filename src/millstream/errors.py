"""The taxonomy of errors.

::

    MillstreamError
    ├── Rejected         the request breaks a rule; a retry cannot succeed
    ├── Retriable        a retry may succeed: another leader, a throttle, a load in progress
    ├── OutcomeUnknown   the request may have taken effect; never reported as failure
    ├── Unavailable      a resource is missing for now: disk full, object store down
    ├── Corruption       bytes do not match their checksum or format; their log is not served
    └── ShuttingDown     the process is stopping

Expected results of single partitions are values (an ``ErrorCode`` in the response). An exception concerns a whole
request. Each error carries the Kafka error code of its response.
"""

from millstream.model.error_code import ErrorCode


class MillstreamError(Exception):
    """Root of the taxonomy. ``code`` is the Kafka error code of the response, ``message`` a sentence for people."""

    default_code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code: ErrorCode = self.default_code if code is None else code


class Rejected(MillstreamError):
    """The request breaks a rule. A retry of the same request fails again."""

    default_code = ErrorCode.INVALID_REQUEST


class Retriable(MillstreamError):
    """The same request may succeed later or on another broker."""

    default_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class OutcomeUnknown(MillstreamError):
    """The request may have taken effect. The usual cause is a timeout."""

    default_code = ErrorCode.REQUEST_TIMED_OUT


class Unavailable(MillstreamError):
    """A resource is missing for now. Nothing was written."""

    default_code = ErrorCode.KAFKA_STORAGE_ERROR


class Corruption(MillstreamError):
    """Stored or received bytes do not match their checksum or their format."""

    default_code = ErrorCode.CORRUPT_MESSAGE


class ShuttingDown(MillstreamError):
    """The broker is stopping."""

    default_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


def how_to_install(extra: str) -> str:
    """How the packages of an extra are installed, to follow "which is not installed: ". The project is in no index."""
    return f"pip install 'PATH[{extra}]', PATH being a checkout or the wheel"

"""The error for a topic's code in metadata, as a sentence with its remedy."""

from typing import Final

from millstream.client.cluster import error_of
from millstream.errors import MillstreamError, Rejected
from millstream.model.error_code import ErrorCode

CREATE_IT: Final = "does not exist; 'millstream topic create {}' makes it"


def topic_error(topic: str, code: int) -> MillstreamError:
    """The error for ``code``, which is not NONE."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Rejected(f"topic {topic} {CREATE_IT.format(topic)}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return Rejected(
            f"{topic!r} cannot be the name of a topic: letters, digits, dot, dash and underscore, at most 249 of them",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        )
    return error_of(code, f"topic {topic}")

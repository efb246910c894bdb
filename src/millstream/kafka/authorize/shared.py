"""What guards have in common: splitting a request, refusing one, adding errors to a response."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from millstream.kafka.rights import MESSAGES, Merge, Passed
from millstream.model.access import Operation, ResourceType
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiKey
from millstream.wire.apis import APIS
from millstream.wire.schema import Response

Op = Operation
TOPIC, GROUP, CLUSTER, TXN = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
T29: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
G30: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
C31: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
X53: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_ITEM = TypeVar("_ITEM")


def split(items: Iterable[_ITEM], may: Callable[[_ITEM], bool]) -> tuple[list[_ITEM], list[_ITEM]]:
    """What may be done, and what not."""
    allowed: list[_ITEM] = []
    refused: list[_ITEM] = []
    for item in items:
        (allowed if may(item) else refused).append(item)
    return allowed, refused


def refusal(key: ApiKey, error: ErrorCode) -> Response:
    """The response of an API whose whole request is refused, where it has one error code."""
    empty: Any = APIS[key].response()
    return replace(
        empty, error_code=error, **({"error_message": MESSAGES[error]} if hasattr(empty, "error_message") else {})
    )


def with_errors(request: Any, refused: list[Any], field: str, errors: list[Any], **changes: Any) -> Passed:
    """The changed request, and a response whose list ``field`` also has ``errors``."""
    if not refused:
        return Passed(request)

    def merge(response: Any) -> Response:
        return replace(response, **{field: [*(getattr(response, field) or ()), *errors]})

    return Passed(replace(request, **changes), merge)


def kept(field: str, may: Callable[[Any], bool]) -> Merge:
    """A response whose list ``field`` has only what may be seen."""

    def merge(response: Any) -> Response:
        return replace(response, **{field: [one for one in getattr(response, field) if may(one)]})

    return merge


def unless_refused(passed: Passed) -> Passed:
    """As in Kafka, a response that refuses the whole group has no topics."""
    merge = passed.merge
    if merge is None:
        return passed

    def merged(response: Response) -> Response:
        return response if getattr(response, "error_code", 0) else merge(response)

    return Passed(passed.request, merged)

"""Random messages of any declared class and version, for the tests of the codec."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

from millstream.wire.apis import APIS
from millstream.wire.messages.consumer_group_storage import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from millstream.wire.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from millstream.wire.messages.group_storage import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millstream.wire.messages.share_group_storage import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from millstream.wire.messages.share_state_storage import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from millstream.wire.messages.streams_group_storage import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from millstream.wire.schema import Kind, Message, Type, fields_of

API_MESSAGES: list[tuple[type[Message], int]] = [
    (cls, version)
    for api in APIS.values()
    for cls in (api.request, api.response)
    for version in range(api.versions[0], api.versions[1] + 1)
]
"""Every request and response, at every version."""

OTHER_MESSAGES: list[tuple[type[Message], int]] = [
    (cls, version)
    for cls in (
        OffsetCommitKey,
        OffsetCommitValue,
        GroupMetadataKey,
        GroupMetadataValue,
        ConsumerGroupMetadataKey,
        ConsumerGroupMetadataValue,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupMemberMetadataValue,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMemberValue,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupCurrentMemberAssignmentValue,
        ConsumerGroupRegularExpressionKey,
        ConsumerGroupRegularExpressionValue,
        ShareGroupMemberMetadataKey,
        ShareGroupMemberMetadataValue,
        ShareGroupMetadataKey,
        ShareGroupMetadataValue,
        ShareGroupTargetAssignmentMetadataKey,
        ShareGroupTargetAssignmentMetadataValue,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupTargetAssignmentMemberValue,
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupCurrentMemberAssignmentValue,
        ShareGroupStatePartitionMetadataKey,
        ShareGroupStatePartitionMetadataValue,
        StreamsGroupMetadataKey,
        StreamsGroupMetadataValue,
        StreamsGroupMemberMetadataKey,
        StreamsGroupMemberMetadataValue,
        StreamsGroupTargetAssignmentMetadataKey,
        StreamsGroupTargetAssignmentMetadataValue,
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupTargetAssignmentMemberValue,
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupCurrentMemberAssignmentValue,
        StreamsGroupTopologyKey,
        StreamsGroupTopologyValue,
        ShareSnapshotKey,
        ShareSnapshotValue,
        ShareUpdateKey,
        ShareUpdateValue,
        ConsumerProtocolSubscription,
        ConsumerProtocolAssignment,
    )
    for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1)
]

ALL_MESSAGES = API_MESSAGES + OTHER_MESSAGES

_BITS = {
    Kind.INT8: (8, True),
    Kind.INT16: (16, True),
    Kind.UINT16: (16, False),
    Kind.INT32: (32, True),
    Kind.UINT32: (32, False),
    Kind.INT64: (64, True),
}
_TEXT = "abc-._09äß漢🙂\0"


def every_version(
    cases: Iterable[tuple[type[Message], int]],
) -> Callable[[Callable[[type[Message], int], None]], Callable[..., None]]:
    """Makes of a test of a class and a version one test for each class, which goes through the versions: six hundred
    tests of their own would cost more than what they do. A failure names its version.
    """

    def decorate(test: Callable[[type[Message], int], None]) -> Callable[..., None]:
        @pytest.mark.parametrize("message", by_message(cases), ids=name_of)
        def in_every_version(message: tuple[type[Message], list[int]]) -> None:
            cls, versions = message
            for version in versions:
                try:
                    test(cls, version)
                except BaseException as failure:
                    failure.add_note(f"with version {version} of {cls.__name__}")
                    raise

        return in_every_version

    return decorate


def by_message(cases: Iterable[tuple[type[Message], int]]) -> list[tuple[type[Message], list[int]]]:
    """Each class with its versions."""
    found: dict[type[Message], list[int]] = {}
    for cls, version in cases:
        found.setdefault(cls, []).append(version)
    return list(found.items())


def name_of(message: tuple[type[Message], list[int]]) -> str:
    """For ``pytest.mark.parametrize(ids=…)`` with ``by_message``."""
    return message[0].__name__


def sample(rng: Random, cls: type[Message], version: int, longest: int = 3) -> Any:
    """A message whose fields are random where the version has them and default where it has not."""
    values: dict[str, Any] = {}
    for field in fields_of(cls, version):
        if not field.present or (field.tag is not None and rng.random() < 0.3):
            continue
        if field.nullable and rng.random() < 0.25:
            values[field.name] = None
        else:
            values[field.name] = _value(rng, field.type, version, longest)
    return cls(**values)


def _value(rng: Random, kind: Type, version: int, longest: int) -> Any:
    if kind.kind in _BITS:
        bits, signed = _BITS[kind.kind]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return rng.choice((low, -1 if signed else 0, 0, 1, high, rng.randint(low, high), rng.randint(0, 100)))
    match kind.kind:
        case Kind.BOOL:
            return rng.random() < 0.5
        case Kind.FLOAT64:
            return rng.uniform(-1e9, 1e9)
        case Kind.UUID:
            return rng.randbytes(16)
        case Kind.STRING:
            return "".join(rng.choice(_TEXT) for _ in range(_length(rng)))
        case Kind.BYTES | Kind.RECORDS:
            return rng.randbytes(_length(rng))
        case Kind.ARRAY:
            assert kind.element is not None
            count = rng.randint(0, longest)
            if kind.element.kind is Kind.INT32 and rng.random() < 0.1:
                count = rng.choice((17, 130))
            return [_value(rng, kind.element, version, longest) for _ in range(count)]
        case _:
            assert kind.struct is not None
            return sample(rng, kind.struct, version, longest)


def _length(rng: Random) -> int:
    return rng.choice((0, 1, 5, 12, 126, 127, 128, 300)) if rng.random() < 0.2 else rng.randint(0, 12)

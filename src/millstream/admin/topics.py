"""Routes for topics: one topic with its partitions, and what creates, grows, trims and deletes it, as the caller."""

from typing import Annotated, Any, Final, Protocol

import msgspec

from millstream.admin.as_caller import Edits, change, read
from millstream.admin.declared import Call, Declared
from millstream.admin.routing import Right
from millstream.model.access import Operation, ResourceType

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class DescribedPartition(msgspec.Struct, frozen=True):
    """A partition. ``leader`` is a node id, -1 without one. The offsets are null while it is not served; ``end_offset``
    is the offset of the next record.
    """

    partition: int
    leader: int
    replicas: list[int]
    in_sync: list[int]
    start_offset: int | None
    end_offset: int | None


class DescribedTopic(msgspec.Struct, frozen=True):
    """A topic and its partitions, by number."""

    topic: str
    internal: bool
    partitions: list[DescribedPartition]


class NewTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic to create; null is the cluster's default."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    replicas: Annotated[int, msgspec.Meta(ge=1, le=2**15 - 1)] | None = None
    settings: Annotated[dict[Text, str], msgspec.Meta(max_length=100)] = {}


class PartitionCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many partitions the topic shall have; partitions are only ever added."""

    count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Trim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By partition the offset before which records are deleted."""

    before: Annotated[dict[PartitionNumber, Offset], msgspec.Meta(min_length=1, max_length=10_000)]


class ActingTopics(Protocol):
    """Topics as one caller sees them, for one request. Every method raises MillstreamError."""

    def topic(self, topic: str) -> DescribedTopic: ...
    def create_topic(self, topic: str, wanted: NewTopic, *, dry_run: bool) -> Edits: ...
    def delete_topic(self, topic: str, *, dry_run: bool) -> Edits: ...
    def add_partitions(self, topic: str, count: int, *, dry_run: bool) -> Edits: ...
    def trim(self, topic: str, before: dict[int, int], *, dry_run: bool) -> Edits:
        """Delete the records before these offsets, by partition."""
        ...


def _of(operation: Operation) -> Right:
    return Right(operation, ResourceType.TOPIC, "topic")


def _name(call: Call) -> str:
    return call.request.variables["topic"]


TOPIC_ROUTES: Final[tuple[Declared[Any], ...]] = (
    read(
        "/v1/topics/{topic}",
        "A topic with leaders, replicas and offsets of its partitions",
        _of(Operation.DESCRIBE),
        lambda acting, call: acting.topic(_name(call)),
        DescribedTopic,
    ),
    change(
        "PUT",
        "/v1/topics/{topic}",
        "Create a topic; one that exists is refused",
        _of(Operation.CREATE),
        lambda acting, call: acting.create_topic(_name(call), call.body, dry_run=call.query.dry_run),
        NewTopic,
        {"partitions": 6, "settings": {"retention.ms": "604800000"}},
    ),
    change(
        "DELETE",
        "/v1/topics/{topic}",
        "Delete a topic with its records",
        _of(Operation.DELETE),
        lambda acting, call: acting.delete_topic(_name(call), dry_run=call.query.dry_run),
    ),
    change(
        "POST",
        "/v1/topics/{topic}/partitions",
        "Add partitions to a topic",
        _of(Operation.ALTER),
        lambda acting, call: acting.add_partitions(_name(call), call.body.count, dry_run=call.query.dry_run),
        PartitionCount,
        {"count": 12},
    ),
    change(
        "POST",
        "/v1/topics/{topic}/trim",
        "Delete the records of a topic before given offsets",
        _of(Operation.DELETE),
        lambda acting, call: acting.trim(_name(call), call.body.before, dry_run=call.query.dry_run),
        Trim,
        {"before": {"0": 1000}},
    ),
)
"""Every route of this page. Settings of a topic are in ``admin.resources``."""

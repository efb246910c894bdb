"""Well-formed requests of share groups (KIP-932) and streams groups (KIP-1071); see ``good``.

``Sharer`` is a member of a share group with its session: it counts epochs, so that cases say only what is odd.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from differential.talk import Talk, Topic
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareOffsetsTopic,
)
from millstream.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteStatePartition,
    DeleteStateTopic,
)
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsTopic,
)
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStatePartition,
    InitializeStateTopic,
)
from millstream.wire.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadStatePartition,
    ReadStateTopic,
)
from millstream.wire.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from millstream.wire.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from millstream.wire.messages.share_fetch import (
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareForgottenTopic,
)
from millstream.wire.messages.share_group_describe import ShareGroupDescribeRequest
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsSubtopology,
    StreamsTopology,
)
from millstream.wire.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteStatePartition,
    WriteStateTopic,
)
from millstream.wire.schema import Request

MEMBER, OTHER = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
WAIT_MS = 60_000
"""How long a fetch waits for what is there; the first fetch of a partition waits for its state."""

Place = tuple[Topic, int]


def acknowledged(first: int, last: int, *types: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first, last, list(types))


def _by_topic(places: Sequence[Place]) -> dict[bytes, list[int]]:
    out: dict[bytes, list[int]] = {}
    for topic, partition in places:
        out.setdefault(topic.id, []).append(partition)
    return out


class Sharer:
    """A member and its session. Fields of requests are keyword arguments; ``epoch`` is the next one unless given."""

    def __init__(self, t: Talk, member: str = MEMBER, group: str = "g") -> None:
        self.t = t
        self.member = member
        self.group = t.name(group)
        self.epoch = 0

    def fetch_request(
        self,
        *places: Place,
        said: Mapping[Place, Sequence[AcknowledgementBatch]] | None = None,
        forget: Sequence[Place] = (),
        epoch: int | None = None,
        **options: Any,
    ) -> ShareFetchRequest:
        """Takes records of these places and acknowledges what is ``said``."""
        said = said or {}
        topics = [
            ShareFetchTopic(
                topic_id, [ShareFetchPartition(part, list(said.get((topic, part), ()))) for topic, part in chosen]
            )
            for topic_id in dict.fromkeys(topic.id for topic, _ in (*places, *said))
            if (chosen := [one for one in dict.fromkeys((*places, *said)) if one[0].id == topic_id])
        ]
        forgotten = [ShareForgottenTopic(topic_id, parts) for topic_id, parts in _by_topic(forget).items()]
        fields = {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch if epoch is None else epoch,
            "max_wait_ms": WAIT_MS,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": topics,
            "forgotten_topics_data": forgotten,
            **options,
        }
        return ShareFetchRequest(**fields)

    def fetch(self, *places: Place, note: bool = True, **options: Any) -> Any:
        """Sends it, and steps the epoch when the answer is one without an error."""
        answer = self.t.ask(self.fetch_request(*places, **options), note=note)
        self._stepped(answer, options)
        return answer

    def poll(self, *places: Place, **options: Any) -> Any:
        """Like ``fetch`` for what is there: no waiting."""
        return self.fetch(*places, max_wait_ms=0, **options)

    def acknowledge_request(
        self, said: Mapping[Place, Sequence[AcknowledgementBatch]], epoch: int | None = None, **options: Any
    ) -> ShareAcknowledgeRequest:
        topics = [
            AcknowledgeTopic(
                topic_id,
                [
                    AcknowledgePartition(part, list(given))
                    for (topic, part), given in said.items()
                    if topic.id == topic_id
                ],
            )
            for topic_id in dict.fromkeys(topic.id for topic, _ in said)
        ]
        fields = {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch if epoch is None else epoch,
            "topics": topics,
            **options,
        }
        return ShareAcknowledgeRequest(**fields)

    def acknowledge(
        self, said: Mapping[Place, Sequence[AcknowledgementBatch]], *, note: bool = True, **options: Any
    ) -> Any:
        answer = self.t.ask(self.acknowledge_request(said, **options), note=note)
        self._stepped(answer, options)
        return answer

    def _stepped(self, answer: Any, options: Mapping[str, Any]) -> None:
        if answer is not None and not answer.error_code:
            epoch = options.get("epoch")
            self.epoch = 0 if epoch == -1 else (self.epoch if epoch is None else epoch) + 1


def share_beat(t: Talk, member: str = MEMBER, epoch: int = 0, **options: object) -> ShareGroupHeartbeatRequest:
    """A member of a share group that says something about itself."""
    return ShareGroupHeartbeatRequest(t.name("g"), member, epoch, **options)


def share_start(t: Talk, topic: Topic, *offsets: int, group: str = "g") -> AlterShareGroupOffsetsRequest:
    """Lets a group without members start at these offsets of partitions 0, 1 and so on."""
    parts = [AlterShareOffsetsPartition(index, offset) for index, offset in enumerate(offsets)]
    return AlterShareGroupOffsetsRequest(t.name(group), [AlterShareOffsetsTopic(topic.name, parts)])


def started(t: Talk, topic: Topic, *offsets: int) -> Sharer:
    """A member of a group that starts there; it has no session yet."""
    t.fence()
    t.until(
        share_start(t, topic, *offsets),
        lambda answer: (
            not answer.error_code and not any(one.error_code for topic in answer.responses for one in topic.partitions)
        ),
    )
    return Sharer(t)


def share_offsets(t: Talk, *topics: Topic, partitions: int = 1, group: str = "g") -> DescribeShareGroupOffsetsRequest:
    """Where the group is; without topics, in all that it has."""
    named = [DescribeShareGroupOffsetsTopic(topic.name, list(range(partitions))) for topic in topics]
    return DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsGroup(t.name(group), named or None)])


def initialise(t: Talk, topic_id: bytes, partition: int = 0, epoch: int = 1, start: int = 0):
    return InitializeShareGroupStateRequest(
        t.name("g"), [InitializeStateTopic(topic_id, [InitializeStatePartition(partition, epoch, start)])]
    )


def read_state(t: Talk, topic_id: bytes, partition: int = 0, leader_epoch: int = 0) -> ReadShareGroupStateRequest:
    return ReadShareGroupStateRequest(
        t.name("g"), [ReadStateTopic(topic_id, [ReadStatePartition(partition, leader_epoch)])]
    )


def summary(t: Talk, topic_id: bytes, partition: int = 0, leader_epoch: int = 0) -> ReadShareGroupStateSummaryRequest:
    return ReadShareGroupStateSummaryRequest(
        t.name("g"), [ReadStateTopic(topic_id, [ReadStatePartition(partition, leader_epoch)])]
    )


def write_state(t: Talk, topic_id: bytes, partition: int = 0, **options: Any) -> WriteShareGroupStateRequest:
    fields = {"state_epoch": 1, "leader_epoch": 0, "start_offset": -1, **options}
    return WriteShareGroupStateRequest(
        t.name("g"), [WriteStateTopic(topic_id, [WriteStatePartition(partition, **fields)])]
    )


def delete_state(t: Talk, topic_id: bytes, partition: int = 0) -> DeleteShareGroupStateRequest:
    return DeleteShareGroupStateRequest(t.name("g"), [DeleteStateTopic(topic_id, [DeleteStatePartition(partition)])])


def streams_beat(t: Talk, member: str = MEMBER, epoch: int = 0, **options: object) -> StreamsGroupHeartbeatRequest:
    """A member of a streams group that says something about itself."""
    return StreamsGroupHeartbeatRequest(t.name("g"), member, epoch, **options)


def streams_join(t: Talk, *topics: str, member: str = MEMBER, **options: object) -> StreamsGroupHeartbeatRequest:
    """A member that joins with a topology of one subtopology that reads these topics."""
    fields = {
        "rebalance_timeout_ms": 5000,
        "topology": StreamsTopology(1, [StreamsSubtopology("0", list(topics))]),
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": "p",
        **options,
    }
    return streams_beat(t, member, 0, **fields)


def _heartbeat(t: Talk) -> Request:
    name = t.topic().name
    t.fence()
    return share_beat(t, subscribed_topic_names=[name])


def _taken(t: Talk) -> Request:
    place = (t.filled(2), 0)
    return Sharer(t).fetch_request(place, epoch=5, said={place: [acknowledged(0, 0, 1)]}, forget=[place])


def _acknowledged(t: Talk) -> Request:
    return Sharer(t).acknowledge_request({(t.topic(), 0): [acknowledged(0, 0, 1)]}, epoch=5)


def _streams(t: Talk) -> Request:
    name = t.topic().name
    t.fence()
    return streams_join(t, name)


GOOD_SHARE: dict[int, Callable[[Talk], Request]] = {
    76: _heartbeat,
    77: lambda t: ShareGroupDescribeRequest([t.name("g")], True),
    78: _taken,
    79: _acknowledged,
    83: lambda t: initialise(t, t.topic().id),
    84: lambda t: read_state(t, t.topic().id),
    85: lambda t: write_state(t, t.topic().id),
    86: lambda t: delete_state(t, t.topic().id),
    87: lambda t: summary(t, t.topic().id),
    88: _streams,
    89: lambda t: StreamsGroupDescribeRequest([t.name("g")], True),
    90: lambda t: share_offsets(t, t.topic()),
    91: lambda t: share_start(t, t.topic(), 0),
    92: lambda t: DeleteShareGroupOffsetsRequest(t.name("g"), [DeleteShareOffsetsTopic(t.topic().name)]),
}
"""API key → a good request."""

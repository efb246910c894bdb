"""A member of a share group by raw requests, with a connection of its own. Its topic is ``t``."""

from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadStatePartition,
    ReadStateTopic,
)
from millstream.wire.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from millstream.wire.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.records import iter_batches, iter_records
from raw_line import Line
from waits import until

PARTITIONS = 4
ACCEPT, RELEASE = 1, 2


class Member:
    """One member. ``throttle_ms`` is what its last fetch was told."""

    def __init__(self, broker, name, group="g"):
        self.line = Line(broker.bootstrap)
        self.name, self.group = name, group
        self.epoch = self.throttle_ms = 0
        (topic,) = self.line.ask(MetadataRequest([MetadataRequestTopic(name="t")])).topics
        self.topic_id = topic.topic_id
        self.got = []

    def start_at_end(self):
        """Have the group, which has no members yet, start at the end of each log. Left alone it would start there at a
        first fetch, and nothing says when a broker has looked for that end.
        """
        self._find_coordinator()
        ends = [ListOffsetsPartition(n, -1, -1) for n in range(PARTITIONS)]
        (topic,) = self.line.ask(ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", ends)])).topics
        starts = [AlterShareOffsetsPartition(one.partition_index, one.offset) for one in topic.partitions]
        wanted = AlterShareGroupOffsetsRequest(self.group, [AlterShareOffsetsTopic("t", starts)])

        def altered():
            answer = self.line.ask(wanted)
            return not answer.error_code and not any(one.error_code for one in answer.responses[0].partitions)

        until(altered, "the group takes no starts")
        return self

    def _find_coordinator(self):
        found = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        until(lambda: self.line.ask(found).coordinators[0].error_code == 0, "there is no coordinator")

    def join(self):
        self._find_coordinator()
        request = ShareGroupHeartbeatRequest(self.group, self.name, 0, subscribed_topic_names=["t"])
        until(lambda: self.line.ask(request).error_code == 0, "the member cannot join")
        wanted = [ReadStatePartition(n, -1) for n in range(PARTITIONS)]
        read = ReadShareGroupStateRequest(self.group, [ReadStateTopic(self.topic_id, wanted)])
        until(lambda: all(not one.error_code for one in self.line.ask(read).results[0].partitions), "there is no state")
        return self

    def fetch(self, said=(), wait_ms=1000, most=500, most_bytes=1 << 20, **more):
        """(partition, first, last, count) of what was acquired."""
        says = dict(said)
        first = self.epoch == 0
        parts = [ShareFetchPartition(n, says.get(n, [])) for n in range(PARTITIONS) if first or n in says]
        topics = [ShareFetchTopic(self.topic_id, parts)] if parts else []
        request = ShareFetchRequest(
            self.group, self.name, self.epoch, wait_ms, 1, most_bytes, most, most, topics=topics, **more
        )
        answer = self.line.ask(request, 2)
        assert answer.error_code == 0, answer
        self.epoch += 1
        self.throttle_ms = answer.throttle_time_ms
        taken = []
        for topic in answer.responses:
            for one in topic.partitions:
                assert (one.error_code, one.acknowledge_error_code) == (0, 0), one
                held = {}
                for batch in iter_batches(bytes(one.records or b"")):
                    held |= {record.offset: record.value for record in iter_records(batch)}
                for each in one.acquired_records:
                    taken.append((one.partition_index, each.first_offset, each.last_offset, each.delivery_count))
                    self.got += [held[offset] for offset in range(each.first_offset, each.last_offset + 1)]
        return taken

    def say(self, taken, kind, epoch=None):
        by_partition = {}
        for index, first, last, _ in sorted(taken):
            by_partition.setdefault(index, []).append(AcknowledgementBatch(first, last, [kind]))
        parts = [AcknowledgePartition(index, batches) for index, batches in by_partition.items()]
        request = ShareAcknowledgeRequest(
            self.group,
            self.name,
            self.epoch if epoch is None else epoch,
            topics=[AcknowledgeTopic(self.topic_id, parts)],
        )
        answer = self.line.ask(request, 2)
        self.epoch += 1
        assert answer.error_code == 0, answer
        return {one.error_code for topic in answer.responses for one in topic.partitions}

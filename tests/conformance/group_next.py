"""A member of the consumer group protocol (KIP-848) that says exactly what a test tells it to, to any broker."""

import itertools

from group_wire import Line

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics

OK = ErrorCode.NONE
NEXT_SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "group.min.session.timeout.ms": 200,
    "group.consumer.max.size": 4,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
}


class NextMember:
    """A member of the consumer protocol that says what a test tells it to; it remembers its epoch and what it owns."""

    def __init__(self, bootstrap, group, name, *, instance=None, topics=("t",), **options):
        self.line = Line(bootstrap)
        self.bootstrap, self.group, self.id, self.instance = bootstrap, group, name, instance
        self.topics, self.options = topics, options
        self.epoch = 0
        self.owned = {}
        self.answer = None

    def say(self, version=1, **fields):
        """One heartbeat; its error."""
        given = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch, **fields}
        self.answer = self.line.ask(ConsumerGroupHeartbeatRequest(**given), version)
        error = ErrorCode(self.answer.error_code)
        if error is OK and self.answer.member_epoch >= 0:
            self.epoch = self.answer.member_epoch
            if self.answer.assignment is not None:
                self.owned = {t.topic_id: sorted(t.partitions) for t in self.answer.assignment.topic_partitions}
        return error

    def join(self, version=1, **fields):
        given = {
            "member_epoch": 0,
            "instance_id": self.instance,
            "rebalance_timeout_ms": 20_000,
            "subscribed_topic_names": None if self.topics is None else list(self.topics),
            "topic_partitions": [],
        }
        return self.say(version, **{**given, **self.options, **fields})

    def beat(self, **fields):
        """A heartbeat that says what it owns now."""
        return self.say(topic_partitions=owning(self.owned), instance_id=self.instance, **fields)

    def leave(self, epoch=-1):
        return self.say(member_epoch=epoch, instance_id=self.instance)

    @property
    def partitions(self):
        """All partitions, whatever their topics."""
        return sorted(itertools.chain.from_iterable(self.owned.values()))

    def described(self):
        (group,) = self.line.ask(ConsumerGroupDescribeRequest(group_ids=[self.group]), 1).groups
        return group


def owning(owned):
    return [OwnedTopicPartitions(topic_id=topic, partitions=partitions) for topic, partitions in owned.items()]


def settle(*members):
    """Heartbeats until nobody is told anything new."""
    for _ in range(20):
        before = [(member.epoch, member.owned) for member in members]
        for member in members:
            assert member.beat() is OK, member.answer
        if before == [(member.epoch, member.owned) for member in members] and len({m.epoch for m in members}) == 1:
            return
    raise AssertionError(before)


def fetch_as(line, group, member_id, epoch):
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id=group, member_id=member_id, member_epoch=epoch, topics=topics)
    (answer,) = line.ask(OffsetFetchRequest(groups=[asked]), 9).groups
    return ErrorCode(answer.error_code) or answer.topics[0].partitions[0].committed_offset

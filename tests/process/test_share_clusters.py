"""What three brokers do with share groups when leadership moves, and when a group or a topic is made again."""

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from share_members import ACCEPT, BROKEN, Addresses

from millstream.testing import cluster
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from millstream.wire.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.ci]

NOT_LEADER, UNSTORED = 6, 1


@pytest.fixture(scope="module")
def three():
    with cluster(3, shards=2, networks=False) as made:
        yield made


class Member:
    """One member of a group that reads partition 0 of a topic, with one session a broker."""

    def __init__(self, three, group, topic, name):
        self.addresses, self.group, self.topic, self.name = Addresses(three), group, topic, name * 22
        self.lines, self.epochs = {}, {}

    def line(self, node):
        if node not in self.lines:
            self.lines[node] = self.addresses.line(node)[0]
        return self.lines[node]

    def place(self):
        """(topic id, leader) of the partition."""
        (found,) = self.line(1).ask(MetadataRequest([MetadataRequestTopic(name=self.topic)])).topics
        return (found.topic_id, found.partitions[0].leader_id) if not found.error_code else None

    def beat(self, epoch):
        node = self.addresses.coordinator(self.group)
        names = [self.topic] if epoch >= 0 else None
        return (
            None
            if node is None
            else self.line(node).ask(ShareGroupHeartbeatRequest(self.group, self.name, epoch, None, names))
        )

    def join(self):
        def joined():
            answer = self.beat(0)
            return answer and not answer.error_code and answer.assignment and answer.assignment.topic_partitions

        until(joined, "the member has no partition")
        return self

    def leave(self):
        """It leaves the group, and not its sessions."""
        assert self.beat(-1).error_code == 0

    def fetch(self):
        """(first, last, count) of what came, or the error of the partition."""
        topic_id, leader = until(self.place, "there is no leader")
        epoch = self.epochs.get((topic_id, leader), 0)
        topics = [ShareFetchTopic(topic_id, [ShareFetchPartition(0)])]
        answer = self.line(leader).ask(
            ShareFetchRequest(self.group, self.name, epoch, 200, 1, 1 << 20, 100, 100, topics=topics), 2
        )
        assert answer.error_code == 0, answer
        self.epochs[topic_id, leader] = epoch + 1
        parts = [one for topic in answer.responses for one in topic.partitions]
        if parts and parts[0].error_code:
            return parts[0].error_code
        return (
            [(each.first_offset, each.last_offset, each.delivery_count) for each in parts[0].acquired_records]
            if (parts)
            else []
        )

    def say(self, leader, taken):
        topic_id, _ = self.place()
        batches = [AcknowledgementBatch(first, last, [ACCEPT]) for first, last, _ in taken]
        epoch = self.epochs[topic_id, leader]
        self.epochs[topic_id, leader] = epoch + 1
        topics = [AcknowledgeTopic(topic_id, [AcknowledgePartition(0, batches)])]
        answer = self.line(leader).ask(ShareAcknowledgeRequest(self.group, self.name, epoch, topics=topics), 2)
        assert answer.error_code == 0, answer
        return answer.responses[0].partitions[0].error_code

    def takes(self):
        """What comes next."""
        got = []

        def some():
            taken = self.fetch()
            if isinstance(taken, list):
                got.extend(taken)
            return got

        return until(some, "nothing comes")

    def close(self):
        for line in self.lines.values():
            line.sock.close()


@pytest.fixture
def member(three):
    made = []

    def make(group, topic, name):
        made.append(Member(three, group, topic, name))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ask(three, request):
    return Addresses(three).any(lambda line: line.ask(request))


def create(three, topic, records):
    def created():
        made = ask(three, CreateTopicsRequest([CreatableTopic(topic, 1, 3)], 60_000))
        return made and made.topics[0].error_code in (0, 36)

    until(created, "the topic cannot be made")
    producer = ck.Producer({"bootstrap.servers": three.bootstrap, "log_level": 0})
    for number in range(records):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(60) == 0


def from_the_start(three, group):
    admin = AdminClient({"bootstrap.servers": three.bootstrap, "log_level": 0})
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    for done in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])]
    ).values():
        done.result(60)


def spread(taken):
    return [offset for first, last, _ in taken for offset in range(first, last + 1)]


def test_the_next_leader_knows_what_was_acknowledged_and_delivers_what_was_held(three, member):
    from_the_start(three, "moves")
    create(three, "moves", 10)
    one = member("moves", "moves", "a").join()
    taken = one.takes()
    assert spread(taken) == list(range(10))
    (_, before) = one.place()
    assert one.say(before, [(0, 3, 1), (6, 7, 1)]) == 0
    after = before % 3 + 1
    order = [after, *({1, 2, 3} - {after})]
    moved = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("moves", [ReassignablePartition(0, order)])])

    def led():
        ask(three, moved)
        ask(three, ElectLeadersRequest(0, [TopicPartitions("moves", [0])], 10_000))
        return one.place()[1] == after

    until(led, "the leadership does not move")
    assert one.say(before, [(4, 5, 1)]) == NOT_LEADER
    assert spread(one.takes()) == [4, 5, 8, 9]
    assert one.say(after, [(4, 5, 1), (8, 9, 1)]) == 0


def test_a_group_that_was_deleted_and_made_again_gets_everything_again(three, member):
    from_the_start(three, "again")
    create(three, "again", 6)
    first = member("again", "again", "a").join()
    taken = first.takes()
    assert first.say(first.place()[1], taken) == 0
    first.leave()

    def deleted():
        try:
            node = first.addresses.coordinator("again")
            return first.line(node).ask(DeleteGroupsRequest(["again"])).results[0].error_code == 0
        except BROKEN:
            return False

    until(deleted, "the group is not deleted")
    second = member("again", "again", "b").join()
    taken = second.takes()
    assert spread(taken) == list(range(6)) and {count for *_, count in taken} == {1}
    assert second.say(second.place()[1], taken) == 0


def test_a_topic_that_was_deleted_and_made_again_is_another_one(three, member):
    from_the_start(three, "topics")
    create(three, "topics", 5)
    first = member("topics", "topics", "a").join()
    taken = first.takes()
    assert first.say(first.place()[1], taken) == 0
    topic_id = first.place()[0]
    gone = ask(three, DeleteTopicsRequest([DeleteTopicState("topics")], ["topics"], 60_000))
    assert gone.responses[0].error_code == 0

    def made_again():
        create(three, "topics", 3)
        return first.place() and first.place()[0] != topic_id

    until(made_again, "the topic is still the former one")
    second = member("topics", "topics", "b").join()
    assert set(spread(second.takes())) >= {0}

"""Rights on a real broker: every API with each right that it asks for missing, on topics that exist and others."""

import json
from contextlib import ExitStack

import confluent_kafka as ck
import pytest

from differential.rights import codes_of, request_for
from differential.talk import Topic
from millstream.config.properties.access import STANDARD_AUTHORIZER
from millstream.core.access.entry import CLUSTER_NAME, AclEntry
from millstream.kafka.authorize.table import RIGHTS
from millstream.kafka.served import SERVED, SHARE_GROUPS, STREAMS_GROUPS
from millstream.model.access import Operation, PatternType, Permission, ResourceType
from millstream.testing.process import Broker
from millstream.wire.apis import APIS
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from millstream.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest, DeleteShareOffsetsTopic
from millstream.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteStatePartition,
    DeleteStateTopic,
)
from millstream.wire.messages.describe_acls import DescribeAclsRequest
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsTopic,
)
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStatePartition,
    InitializeStateTopic,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
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
from millstream.wire.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from millstream.wire.messages.share_group_describe import ShareGroupDescribeRequest
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsSubtopology,
    StreamsTopicInfo,
    StreamsTopology,
)
from millstream.wire.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteStatePartition,
    WriteStateTopic,
)
from millstream.wire.sasl import SCRAM_SHA_256, salted_password
from raw_line import Line, log_in
from waits import until

pytestmark = pytest.mark.process

PASSWORD = "a-word-of-alice-2207"
ALICE = "User:alice"
TOPIC, GROUP, CLUSTER, TXN = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
AUTHORIZATION = {29, 30, 31, 53}
BESIDE = {
    (3, TOPIC, Operation.CREATE): (CLUSTER, Operation.CREATE),
    (19, TOPIC, Operation.CREATE): (CLUSTER, Operation.CREATE),
    (16, GROUP, Operation.DESCRIBE): (CLUSTER, Operation.DESCRIBE),
    (20, TOPIC, Operation.DELETE): (CLUSTER, Operation.ALL),
    (20, TOPIC, Operation.DESCRIBE): (CLUSTER, Operation.ALL),
    (22, CLUSTER, Operation.IDEMPOTENT_WRITE): (TOPIC, Operation.WRITE),
    (23, TOPIC, Operation.DESCRIBE): (CLUSTER, Operation.CLUSTER_ACTION),
    (27, CLUSTER, Operation.CLUSTER_ACTION): (CLUSTER, Operation.ALTER),
}
"""Rights that another one stands in for: both are missing."""


def entry(resource, operation, permission=Permission.ALLOW, name="*", principal=ALICE, pattern=PatternType.LITERAL):
    name = CLUSTER_NAME if resource == CLUSTER else name
    return AclEntry(resource, pattern, name, principal, "*", operation, permission)


class Rights:
    """The entries in force, changed by the superuser of the socket file."""

    def __init__(self, broker):
        self.line = Line(f"{broker.data_dir}/admin.sock")

    def create(self, *entries):
        created = [
            AclCreation(e.resource_type, e.name, e.pattern_type, e.principal, e.host, e.operation, e.permission)
            for e in entries
        ]
        answer = self.line.ask(CreateAclsRequest(created))
        assert [one.error_code for one in answer.results] == [0] * len(entries)

    def delete(self, *entries):
        filters = [
            DeleteAclsFilter(e.resource_type, e.name, e.pattern_type, e.principal, e.host, e.operation, e.permission)
            for e in entries
        ]
        answer = self.line.ask(DeleteAclsRequest(filters))
        assert [len(one.matching_acls) for one in answer.filter_results] == [1] * len(entries)

    def delete_all(self):
        self.line.ask(DeleteAclsRequest([DeleteAclsFilter(1, None, 1, None, None, 1, 1)]))


@pytest.fixture(scope="module")
def broker():
    settings = {"listener.security.protocol.map": "A:PLAINTEXT,S:SASL_PLAINTEXT"}
    with Broker(None, settings, listen="A://127.0.0.1:0,S://127.0.0.1:0", shards=2) as started:
        with Line(f"{started.data_dir}/admin.sock") as line:
            salted = salted_password(SCRAM_SHA_256, PASSWORD, b"salt", 4096)
            wanted = [ScramCredentialUpsertion("alice", 1, 4096, b"salt", salted)]
            assert line.ask(AlterUserScramCredentialsRequest([], wanted)).results[0].error_code == 0
            topics = [CreatableTopic("there", 1, 1), CreatableTopic("hidden", 1, 1)]
            assert codes_of(line.ask(CreateTopicsRequest(topics, 60_000))) == {0}
        yield started


def share_states():
    """Requests of APIs 83 to 87, each for one share partition."""
    topic = b"t" * 16
    return {
        83: InitializeShareGroupStateRequest("shares", [InitializeStateTopic(topic, [InitializeStatePartition()])]),
        84: ReadShareGroupStateRequest("shares", [ReadStateTopic(topic, [ReadStatePartition()])]),
        85: WriteShareGroupStateRequest("shares", [WriteStateTopic(topic, [WriteStatePartition()])]),
        86: DeleteShareGroupStateRequest("shares", [DeleteStateTopic(topic, [DeleteStatePartition()])]),
        87: ReadShareGroupStateSummaryRequest("shares", [ReadStateTopic(topic, [ReadStatePartition()])]),
    }


@pytest.fixture
def rights(broker):
    made = Rights(broker)
    made.delete_all()
    with made.line:
        yield made


@pytest.fixture
def alice(broker):
    about = json.loads((broker.data_dir / "broker.json").read_text())
    with Line(about["listeners"]["S"]) as line:
        assert log_in(line, "alice", PASSWORD).error_code == 0
        yield line


def all_names(line):
    return [topic.name for topic in line.ask(MetadataRequest(None, False)).topics]


def topic_id(line, name):
    (found,) = line.ask(MetadataRequest([MetadataRequestTopic(name=name)], False)).topics
    return found.topic_id


def test_every_served_api_states_its_rights():
    assert set(RIGHTS) == set(SERVED)


def test_without_any_right_nothing_is_done_and_nothing_is_seen(broker, rights, alice):
    before = all_names(rights.line)
    there, missing = Topic("there", topic_id(rights.line, "there")), Topic("missing", bytes(15) + b"\7")
    for key in sorted(set(SERVED) - SHARE_GROUPS - STREAMS_GROUPS - {17, 18, 36}):
        version = APIS[key].versions[1]
        for topic in (there, missing):
            answer = alice.ask(request_for(key, version, topic), version)
            codes = codes_of(answer)
            if not RIGHTS[key]:
                assert not codes & AUTHORIZATION, APIS[key].name
            elif key in (16, 66):
                assert codes == {0}
            elif topic is missing and not codes & AUTHORIZATION:
                assert codes & {0, 100, 3}, (APIS[key].name, answer)  # by an id that does not exist
            else:
                assert codes & AUTHORIZATION, (APIS[key].name, answer)
    assert alice.ask(MetadataRequest(None, False)).topics == []
    assert all_names(rights.line) == before


@pytest.mark.parametrize("exists", [True, False])
def test_each_right_that_is_missing_is_noticed(broker, rights, alice, exists):
    everything = [entry(resource, Operation.ALL) for resource in (TOPIC, GROUP, CLUSTER, TXN)]
    rights.create(*everything)
    topic = Topic("there", topic_id(rights.line, "there")) if exists else Topic("missing", bytes(15) + b"\7")
    unnoticed = []
    for key in sorted(set(SERVED) - SHARE_GROUPS - STREAMS_GROUPS):
        for one in RIGHTS[key]:
            version = APIS[key].versions[1]
            if key == 24 and one.resource != CLUSTER:
                version = 3
            by_id = key in (0, 1, 8, 20) or key > 15_000
            if (
                "left out" in one.when
                or "of each topic" in one.when
                or (by_id and not exists and one.resource == TOPIC)
            ):
                continue
            request = request_for(key, version, topic, one.resource, one.operation)
            denied = [entry(one.resource, one.operation, Permission.DENY)]
            beside = BESIDE.get((key, one.resource, one.operation))
            if beside is not None:
                denied.append(entry(*beside, Permission.DENY))
            rights.create(*denied)
            codes = codes_of(alice.ask(request, version))
            rights.delete(*denied)
            if one.error not in codes:
                unnoticed.append((APIS[key].name, version, one.resource.name, one.operation.name, codes))
    assert not unnoticed


def test_each_missing_right_on_a_share_group_is_noticed(broker, rights, alice):
    seek = FindCoordinatorRequest(key_type=0, coordinator_keys=["shares"])
    until(lambda: codes_of(rights.line.ask(seek)) == {0}, "the group has a coordinator")
    named = topic_id(rights.line, "there")
    one_acknowledged = AcknowledgePartition(0, [AcknowledgementBatch(0, 0, [1])])
    start = AlterShareOffsetsTopic("there", [AlterShareOffsetsPartition(0, 1)])
    in_group = DescribeShareGroupOffsetsGroup("shares", [DescribeShareGroupOffsetsTopic("there", [0])])
    requests = {
        76: ShareGroupHeartbeatRequest("shares", "m", 0, None, ["there"]),
        77: ShareGroupDescribeRequest(["shares"]),
        90: DescribeShareGroupOffsetsRequest([in_group, DescribeShareGroupOffsetsGroup("shares")]),
        78: ShareFetchRequest("shares", "m", topics=[ShareFetchTopic(named, [ShareFetchPartition()])], max_records=1),
        79: ShareAcknowledgeRequest("shares", "m", -1, topics=[AcknowledgeTopic(named, [one_acknowledged])]),
        91: AlterShareGroupOffsetsRequest("shares", [start]),
        92: DeleteShareGroupOffsetsRequest("shares", [DeleteShareOffsetsTopic("there")]),
        **share_states(),
    }
    assert set(requests) == set(SHARE_GROUPS)
    for request in requests.values():
        assert codes_of(alice.ask(request)) & AUTHORIZATION
    rights.create(*(entry(resource, Operation.ALL) for resource in (TOPIC, GROUP, CLUSTER)))
    assert not codes_of(alice.ask(requests[91])) & AUTHORIZATION
    for key, request in requests.items():
        for one in RIGHTS[key]:
            if "of each topic" in one.when:
                continue
            denied = entry(one.resource, one.operation, Permission.DENY)
            rights.create(denied)
            assert one.error in codes_of(alice.ask(request)), (APIS[key].name, one.resource, one.operation)
            rights.delete(denied)


def test_with_all_rights_no_error_is_about_rights(broker, rights, alice):
    rights.create(*(entry(resource, Operation.ALL) for resource in (TOPIC, GROUP, CLUSTER, TXN)))
    topic = Topic("hidden", topic_id(rights.line, "hidden"))
    for key in sorted(set(SERVED) - SHARE_GROUPS - STREAMS_GROUPS - {17, 18, 36, 64, 20}):
        version = APIS[key].versions[1]
        codes = codes_of(alice.ask(request_for(key, version, topic), version))
        assert not codes & AUTHORIZATION, (APIS[key].name, codes)


def test_a_session_of_fetches_ends_when_rights_change(broker, rights, alice):
    read = entry(TOPIC, Operation.READ, name="there")
    rights.create(read)
    named = topic_id(rights.line, "there")

    def fetch(session=0, epoch=0, topics=True):
        wanted = [FetchTopic("", named, [FetchPartition(partition=0, partition_max_bytes=1000)])] if topics else []
        return alice.ask(FetchRequest(session_id=session, session_epoch=epoch, topics=wanted, max_wait_ms=1))

    opened = fetch()
    assert opened.error_code == 0 and opened.session_id
    assert fetch(opened.session_id, 1, topics=False).error_code == 0
    rights.delete(read)
    assert fetch(opened.session_id, 2, topics=False).error_code == 70
    refused = fetch()
    assert refused.session_id == 0 and codes_of(refused) == {0, 29}
    parts = [one for topic in refused.responses for one in topic.partitions]
    assert parts and all(one.records is not None for one in parts), "librdkafka takes no answer without records"
    rights.create(read)
    assert codes_of(fetch()) == {0}


def test_a_list_of_all_topics_has_those_that_may_be_described(broker, rights, alice):
    rights.create(entry(TOPIC, Operation.DESCRIBE, name="the", pattern=PatternType.PREFIXED))
    for version in (0, 1, 9, 13):
        answer = alice.ask(MetadataRequest([] if version == 0 else None, False), version)
        assert [topic.name for topic in answer.topics] == ["there"], version
    hidden = alice.ask(MetadataRequest([MetadataRequestTopic(topic_id(rights.line, "hidden"), None)], False))
    assert (hidden.topics[0].error_code, hidden.topics[0].name) == (29, None)
    rights.delete_all()
    assert alice.ask(MetadataRequest([], False), 0).topics == []


def test_authorised_operations_are_those_of_the_client(broker, rights, alice):
    rights.create(entry(TOPIC, Operation.READ, name="there"), entry(CLUSTER, Operation.ALTER))
    (topic,) = alice.ask(MetadataRequest([MetadataRequestTopic(name="there")], False, False, True)).topics
    assert topic.topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
    cluster = alice.ask(DescribeClusterRequest(True)).cluster_authorized_operations
    assert cluster == 1 << Operation.ALTER | 1 << Operation.DESCRIBE


def test_entries_are_listed_and_survive_a_restart():
    with Broker(None, {"authorizer.class.name": STANDARD_AUTHORIZER}, shards=1) as alone:
        entries_survive_a_restart(alone, Rights(alone))


def entries_survive_a_restart(broker, rights):
    wanted = [entry(TOPIC, Operation.READ, name="orders-", pattern=PatternType.PREFIXED), entry(GROUP, Operation.READ)]
    rights.create(*wanted)

    def listed(line):
        answer = line.ask(DescribeAclsRequest(1, None, 1, None, None, 1, 1))
        return {(one.resource_type, one.resource_name, one.pattern_type) for one in answer.resources}

    expected = {(TOPIC, "orders-", PatternType.PREFIXED), (GROUP, "*", PatternType.LITERAL)}
    assert listed(rights.line) == expected
    rights.line.sock.close()
    broker.kill()
    broker.start()
    with Line(f"{broker.data_dir}/admin.sock") as line:
        assert listed(line) == expected


def test_a_regular_expression_finds_topics_that_its_client_may_describe(alice, rights):
    rights.create(entry(GROUP, Operation.READ), entry(TOPIC, Operation.DESCRIBE, name="there"))

    def assigned(member, epoch):
        """The topics of a member by its next heartbeat, and its epoch."""
        joins = epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            "by-regex",
            member,
            epoch,
            rebalance_timeout_ms=60_000 if joins else -1,
            subscribed_topic_regex="there|hidden" if joins else None,
            topic_partitions=[] if joins else None,
        )
        answer = alice.ask(request)
        assert answer.error_code == 0
        parts = answer.assignment.topic_partitions if answer.assignment is not None else []
        return {part.topic_id for part in parts}, answer.member_epoch

    seek = FindCoordinatorRequest(key_type=0, coordinator_keys=["by-regex"])
    until(lambda: codes_of(rights.line.ask(seek)) == {0}, "the group has a coordinator")
    found, epoch = assigned("m-1", 0)
    while not found:
        found, epoch = assigned("m-1", epoch)
    ids = {topic.name: topic.topic_id for topic in rights.line.ask(MetadataRequest(None, False)).topics}
    assert found == {ids["there"]}
    groups = rights.line.ask(ConsumerGroupDescribeRequest(["by-regex"], False)).groups
    targets = [part.topic_name for each in groups[0].members for part in each.target_assignment.topic_partitions]
    assert targets == ["there"]


@pytest.fixture
def options(broker):
    about = json.loads((broker.data_dir / "broker.json").read_text())
    return {
        "bootstrap.servers": about["listeners"]["S"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        "log_level": 0,
    }


def first(consumer):
    """The first message or error that a consumer polls."""
    found = None
    while found is None:
        found = consumer.poll(60)
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_assigned_consumer_needs_the_right_to_its_topic(rights, options, protocol):
    rights.create(entry(GROUP, Operation.READ, name=protocol))
    with ExitStack() as stack:
        consumer = ck.Consumer({**options, "group.id": protocol, "group.protocol": protocol})
        stack.callback(consumer.close)
        consumer.assign([ck.TopicPartition("there", 0, ck.OFFSET_BEGINNING)])
        refused = consumer.list_topics("there", 60).topics["there"].error
        assert refused.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert consumer.poll(0) is None
        rights.create(entry(TOPIC, Operation.ALL, name="there"))
        producer = ck.Producer(options)
        producer.produce("there", b"for an assigned consumer")
        assert producer.flush(60) == 0
        assert first(consumer).error() is None


@pytest.mark.parametrize("keeps_right", [True, False])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_leaves_a_group_with_and_without_the_right_to_it(rights, options, protocol, keeps_right):
    group = f"left-{protocol}-{keeps_right}"
    to_group = entry(GROUP, Operation.READ, name=group)
    rights.create(to_group, entry(TOPIC, Operation.ALL, name="there"))
    producer = ck.Producer(options)
    producer.produce("there", b"for a group")
    assert producer.flush(60) == 0
    more = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = ck.Consumer({**options, **more, "group.id": group, "group.protocol": protocol})
    consumer.subscribe(["there"])
    assert first(consumer).error() is None
    if not keeps_right:
        rights.delete(to_group)
    consumer.unsubscribe()
    consumer.close()
    members = rights.line.ask(ConsumerGroupDescribeRequest([group], False)).groups[0].members
    assert bool(members) is (not keeps_right and protocol == "consumer")


def test_stock_clients_meet_the_errors_of_kafka(broker, rights, options):
    rights.create(entry(TOPIC, Operation.WRITE, name="there"), entry(TOPIC, Operation.DESCRIBE, name="hidden"))
    failures = {}
    producer = ck.Producer(options)
    for topic in ("there", "hidden"):
        producer.produce(topic, b"x", on_delivery=lambda error, m: failures.update({m.topic(): error}))
    assert producer.flush(60) == 0
    assert failures["there"] is None
    assert failures["hidden"].code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    with ExitStack() as stack:
        consumer = ck.Consumer({**options, "group.id": "g"})
        stack.callback(consumer.close)
        consumer.subscribe(["there"])
        error = None
        while error is None:
            message = consumer.poll(60)
            error = message.error() if message is not None else None
        assert error.code() == ck.KafkaError.GROUP_AUTHORIZATION_FAILED


def test_the_anonymous_client_of_an_open_listener_has_no_rights_either(broker, rights):
    with Line(broker.bootstrap) as line:
        assert line.ask(MetadataRequest(None, False)).topics == []
        assert codes_of(line.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)], 1000))) == {29, 0}


def test_each_missing_right_on_a_streams_group_is_noticed(broker, rights, alice):
    seek = FindCoordinatorRequest(key_type=0, coordinator_keys=["streams"])
    until(lambda: codes_of(rights.line.ask(seek)) == {0}, "the group has a coordinator")
    names = ["streams-1-changelog", "streams-2-changelog"]
    changelogs = [StreamsTopicInfo(name) for name in names]
    topology = StreamsTopology(0, [StreamsSubtopology("0", ["there"], state_changelog_topics=changelogs)])
    joins = StreamsGroupHeartbeatRequest("streams", "m", 0, 0, None, None, 1_000, topology, [], [], [], "p")
    requests = {88: joins, 89: StreamsGroupDescribeRequest(["streams"])}
    for request in requests.values():
        assert codes_of(alice.ask(request)) & AUTHORIZATION

    everything = [entry(resource, Operation.ALL) for resource in (TOPIC, GROUP)]
    create = [entry(resource, Operation.CREATE, Permission.DENY) for resource in (TOPIC, CLUSTER)]
    rights.create(*everything, *create)
    (status,) = [one for one in alice.ask(joins).status if one.status_code == 3]
    assert status.status_detail.endswith(f"; Unauthorized to CREATE on topics {', '.join(names)}.")
    assert not set(names) & set(all_names(rights.line))
    rights.delete(*create)
    until(lambda: not alice.ask(joins).error_code and set(names) <= set(all_names(rights.line)), "they are created")

    for key, request in requests.items():
        for one in RIGHTS[key]:
            denied = entry(one.resource, one.operation, Permission.DENY)
            rights.create(denied)
            assert one.error in codes_of(alice.ask(request)), (APIS[key].name, one.resource, one.operation)
            rights.delete(denied)

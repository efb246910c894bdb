"""Rights, asked of Millstream and of Apache Kafka with its StandardAuthorizer: each API with each right missing.

``python -m differential.rights --save`` starts both, plays every scenario on both, prints what differs and keeps what
Kafka answered in ``recorded/rights/``; ``test_recorded_rights.py`` holds Millstream to that. A scenario is an API, a
version, a topic that exists or not, and entries: none, all, all without one right, one right alone.

What is compared are the errors about rights in an answer, in order, and whether the connection stays. Other errors may
differ here: the cases of this folder are about those.
"""

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from differential.good import GOOD
from differential.talk import Topic, batch, produce_request
from millstream.config.properties.access import STANDARD_AUTHORIZER
from millstream.core.access.entry import CLUSTER_NAME
from millstream.kafka.authorize.table import RIGHTS
from millstream.model.access import Operation, PatternType, Permission, ResourceType
from millstream.wire.apis import APIS, api_name
from millstream.wire.messages import alter_configs
from millstream.wire.messages.acknowledge_events import AcknowledgedPartition, AcknowledgeEventsRequest
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from millstream.wire.messages.describe_acls import DescribeAclsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.wire.messages.describe_verifiers import DescribeVerifiersRequest
from millstream.wire.messages.events_metadata import EventsMetadataRequest
from millstream.wire.messages.feed_events import FeedEventsRequest
from millstream.wire.messages.fetch_event_data import FetchEventDataRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from millstream.wire.messages.push_events import PushEventsRequest
from millstream.wire.messages.replace_segments import ReplaceSegmentsRequest
from millstream.wire.messages.reserve_producer_ids import ReserveProducerIdsRequest
from millstream.wire.messages.restore_batches import RestoreBatchesRequest
from millstream.wire.messages.restore_verifiers import RestoreVerifiersRequest
from millstream.wire.sasl import SCRAM_SHA_256, salted_password
from raw_line import Line, log_in
from waits import until

TOPIC, GROUP, CLUSTER, TXN = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
NUMBERS = itertools.count()
AUTHORIZATION = {29, 30, 31, 53}
RECORDED = Path(__file__).with_name("recorded") / "rights" / "answers.json"
PASSWORD = "a-word-of-alice-2207"
ALICE = "User:alice"
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "connections.max.idle.ms": "3600000",
}
OF_OTHERS = {17, 18, 36}
"""APIs of logins."""
CLOSED = "closed"


class Names:
    """What the good requests ask of a conversation."""

    def __init__(self, topic, version):
        self._topic = topic
        self.version = version

    def name(self, label):
        return f"n-{label.replace(' ', '-')}"

    def topic(self, *_, **__):
        return self._topic

    filled = topic

    def fence(self):
        """Nothing is to be waited for."""


def events(topic):
    return {
        15100: PushEventsRequest(topic.id, 0, 1000, b""),
        15101: FeedEventsRequest("c", topic.id, 0),
        15102: FetchEventDataRequest(topic.id, 0),
        15103: AcknowledgeEventsRequest("c", topic.id, False, [AcknowledgedPartition(0, 0)]),
        15104: EventsMetadataRequest([topic.name]),
        15200: ReplaceSegmentsRequest(topic.id, 0),
        15300: RestoreBatchesRequest(topic.id, 0, b""),
        15301: ReserveProducerIdsRequest(1),
        15302: DescribeVerifiersRequest(),
        15303: RestoreVerifiersRequest([]),
    }


def request_for(key, version, topic, resource=None, operation=None):
    """A request that asks for the right."""
    if key > 15_000:
        return events(topic)[key]
    if key == 0 and resource == TXN:
        records = batch(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
        return msgspec.structs.replace(produce_request(topic, records), transactional_id="x")
    if key == 19:
        return CreateTopicsRequest([CreatableTopic(f"new-{next(NUMBERS)}", 1, 1)], 60_000)
    if key == 10 and resource == TXN:
        return FindCoordinatorRequest("x", 1, ["x"])
    if key == 22 and resource == TXN:
        return InitProducerIdRequest("x", 1000)
    if key == 31:
        return DeleteAclsRequest([DeleteAclsFilter(2, "nothing", 3, "User:nobody", None, 1, 1)])
    if key == 3 and operation == Operation.CREATE:
        return MetadataRequest([MetadataRequestTopic(name="to-be-created")], True)
    if key in (32, 33, 44) and resource in (GROUP, CLUSTER):
        kind, name = (32, "g") if resource == GROUP else (4, "")
        if key == 32:
            return DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)])
        changes = [AlterableConfig("consumer.session.timeout.ms", 0, "50000")] if resource == GROUP else []
        if key == 44:
            return IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, changes)], True)
        return alter_configs.AlterConfigsRequest([alter_configs.AlterConfigsResource(kind, name, [])], True)
    return GOOD[key](Names(topic, version))


def codes_of(value):
    """Every error code of a response."""
    if isinstance(value, list):
        return {code for one in value for code in codes_of(one)}
    if not isinstance(value, msgspec.Struct):
        return set()
    found = set()
    for name in value.__struct_fields__:
        content = getattr(value, name)
        found |= {content} if name.endswith("error_code") else codes_of(content)
    return found


class Rights(NamedTuple):
    """One entry, or all that there are of a kind."""

    resource: ResourceType
    operation: Operation
    permission: Permission

    def creation(self):
        name = CLUSTER_NAME if self.resource == CLUSTER else "*"
        return AclCreation(self.resource, name, PatternType.LITERAL, ALICE, "*", self.operation, self.permission)


class Scenario(NamedTuple):
    """What is asked, under which entries. ``id`` is how it is recorded."""

    key: int
    version: int
    exists: bool
    title: str
    entries: tuple[Rights, ...]
    resource: ResourceType | None = None
    operation: Operation | None = None

    @property
    def id(self):
        return f"{api_name(self.key)} v{self.version} {'there' if self.exists else 'missing'}: {self.title}"


EVERYTHING = tuple(Rights(resource, Operation.ALL, Permission.ALLOW) for resource in (TOPIC, GROUP, CLUSTER, TXN))


def scenarios(keys):
    """All of them, of APIs that Kafka has."""
    for key, rights in sorted(RIGHTS.items()):
        if key in OF_OTHERS or key not in keys or key > 15_000:
            continue
        low, high = APIS[key].versions
        low, high = max(low, keys[key][0]), min(high, keys[key][1])
        versions = {low, high} | ({3} & set(range(low, high + 1)) if key == 24 else set())
        for version, exists in itertools.product(sorted(versions), (True, False)):
            yield Scenario(key, version, exists, "nothing", ())
            yield Scenario(key, version, exists, "everything", EVERYTHING)
            for resource, operation in dict.fromkeys((right.resource, right.operation) for right in rights):
                what = f"{operation.name} on {resource.name}"
                denied = Rights(resource, operation, Permission.DENY)
                alone = Rights(resource, operation, Permission.ALLOW)
                yield Scenario(key, version, exists, f"all but {what}", (*EVERYTHING, denied), resource, operation)
                yield Scenario(key, version, exists, f"only {what}", (alone,), resource, operation)


class Played:
    """One broker, as its superuser and as alice."""

    def __init__(self, bootstrap, secured):
        self._secured = secured
        self.line = Line(bootstrap)
        salted = salted_password(SCRAM_SHA_256, PASSWORD, b"salt", 4096)
        wanted = [ScramCredentialUpsertion("alice", 1, 4096, b"salt", salted)]
        until(lambda: self.line.ask(AlterUserScramCredentialsRequest([], wanted)).results[0].error_code == 0, "a user")
        for kind in (0, 1):
            asked = FindCoordinatorRequest("g", kind, ["g"])
            until(lambda asked=asked: not self.line.ask(asked).coordinators[0].error_code, "a coordinator")
        until(lambda: not self.line.ask(InitProducerIdRequest("warm", 1000)).error_code, "producer ids")
        warm = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[])])
        until(lambda: not self.line.ask(warm, 9).groups[0].error_code, "offsets")
        self.alice = None
        self.entries = ()
        until(self.logs_in, "a login")
        self.versions = {
            each.api_key: (each.min_version, each.max_version)
            for each in self.line.ask(ApiVersionsRequest("test", "1"), 4).api_keys
        }

    def logs_in(self):
        if self.alice is not None:
            self.alice.sock.close()
        self.alice = Line(self._secured)
        return log_in(self.alice, "alice", PASSWORD).error_code == 0

    def play(self, scenario):
        """What alice gets: error codes in order, or that the connection is closed."""
        topic = Topic("there", self.id_of_there()) if scenario.exists else Topic("missing", bytes(15) + b"\7")
        self.use(scenario.entries)
        request = request_for(scenario.key, scenario.version, topic, scenario.resource, scenario.operation)
        try:
            return list(codes_in_order(self.alice.ask(request, scenario.version)))
        except (AssertionError, OSError):
            until(self.logs_in, "a login")
            return CLOSED

    def use(self, entries):
        """Have exactly these entries in force, on the broker that answers."""
        if entries == self.entries:
            return
        self.line.ask(DeleteAclsRequest([DeleteAclsFilter(1, None, 1, None, None, 1, 1)]))
        if entries:
            self.line.ask(CreateAclsRequest([each.creation() for each in entries]))
        wanted = sorted((e.resource, e.operation, e.permission) for e in entries)
        until(lambda: self.in_force() == wanted, "entries in force", every_s=0.005)
        self.entries = entries

    def in_force(self):
        found = self.line.ask(DescribeAclsRequest(1, None, 1, None, None, 1, 1)).resources
        return sorted((one.resource_type, acl.operation, acl.permission_type) for one in found for acl in one.acls)

    def id_of_there(self):
        """The id of the topic that exists, which is made again when a scenario has deleted it."""

        def found():
            (topic,) = self.line.ask(MetadataRequest([MetadataRequestTopic(name="there")], False)).topics
            if topic.error_code:
                self.line.ask(CreateTopicsRequest([CreatableTopic("there", 2, 1)], 60_000))
            return b"" if topic.error_code or any(one.error_code for one in topic.partitions) else topic.topic_id

        return until(found, "the topic")

    def close(self):
        for line in (self.line, self.alice):
            line.sock.close()


def codes_in_order(value):
    """Every error code of a response, with its field."""
    if isinstance(value, list):
        for one in value:
            yield from codes_in_order(one)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            content = getattr(value, name)
            if name.endswith("error_code"):
                yield content
            else:
                yield from codes_in_order(content)


def about_rights(answer):
    """The part of an answer that is compared: errors about rights, in order."""
    return answer if answer == CLOSED else [code for code in answer if code in AUTHORIZATION]


@contextlib.contextmanager
def ours() -> Generator[Played]:
    """Our broker."""
    from millstream.testing.process import Broker

    settings = {**SETTINGS, "listener.security.protocol.map": "A:PLAINTEXT,S:SASL_PLAINTEXT"}
    with Broker(None, settings, listen="A://127.0.0.1:0,S://127.0.0.1:0", shards=1) as broker:
        at = json.loads((broker.data_dir / "broker.json").read_text())["listeners"]
        with contextlib.closing(Played(at["A"], at["S"])) as played:
            yield played


@contextlib.contextmanager
def kafka() -> Generator[Played]:
    """A real Kafka; ``PeerUnavailable`` says what is missing on this machine."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from bench.peers.kafka import free_port
    from bench.peers.kafka import kafka as start

    plain, controller, secured = (f"127.0.0.1:{free_port()}" for _ in range(3))
    listeners = f"PLAINTEXT://{plain},SASL_PLAINTEXT://{secured}"
    settings = {
        **SETTINGS,
        "controller.quorum.bootstrap.servers": controller,
        "listeners": f"{listeners},CONTROLLER://{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram."
        "ScramLoginModule required;",
    }
    with (
        start(properties=settings, port=int(plain.rpartition(":")[2])) as broker,
        contextlib.closing(Played(broker.bootstrap, secured)) as played,
    ):
        yield played


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m differential.rights", description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep what Kafka answered")
    parser.add_argument("--api", default="", metavar="NAME", help="only this API")
    given = parser.parse_args()
    answers: dict[str, Any] = {}
    different = 0
    with kafka() as theirs, ours() as mine:
        for scenario in scenarios(theirs.versions):
            if given.api and api_name(scenario.key) != given.api:
                continue
            if scenario.title == "nothing":
                print(scenario.id, file=sys.stderr)
            expected, found = theirs.play(scenario), mine.play(scenario)
            answers[scenario.id] = expected
            if about_rights(expected) != about_rights(found):
                different += 1
                print(f"{scenario.id}: Kafka {expected}, ours {found}")
    print(f"{len(answers)} scenarios, {different} differ")
    if given.save:
        RECORDED.parent.mkdir(exist_ok=True)
        lines = [f" {json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items()]
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

"""Consumers with ``group.protocol=consumer`` (KIP-848), and groups that change their protocol while at work."""

import json

import pytest
from bench.peers.kafka import VERIFIABLE_CONSUMER, java_command
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka_clients import QUIET, ConfluentProducer, Taking, Tool

from waits import Patience

pytestmark = pytest.mark.process

PARTITIONS = 4
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 45_000,
}


class Member(Taking):
    """A consumer of either protocol, and what it was told."""

    def __init__(self, bootstrap, group, protocol="consumer", **options):
        if protocol == "classic":
            options = {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 300, **options}
        self.consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **options,
            }
        )
        self.consumer.subscribe(["t"])

    def poll(self):
        return [m.value().decode() for m in self.consumer.consume(500, 0.05) if m.error() is None]

    @property
    def owned(self):
        return sorted(place.partition for place in self.consumer.assignment())

    def close(self):
        self.consumer.close()


def until_shared(members):
    """Polls until all partitions are owned, each by one, and everybody's share differs by one at most."""
    patience = Patience()
    while True:
        got = [value for member in members for value in member.poll()]
        owned = [member.owned for member in members]
        sizes = [len(one) for one in owned]
        if (
            sorted(partition for one in owned for partition in one) == list(range(PARTITIONS))
            and max(sizes) - min(sizes) <= 1
        ):
            return got
        patience.check(f"it does not settle: {owned}")


def kind(bootstrap, group):
    client = AdminClient({"bootstrap.servers": bootstrap})
    listing = client.list_consumer_groups(request_timeout=60).result()
    (found,) = [listed for listed in listing.valid if listed.group_id == group]
    return found.type.name.lower(), found.state.name.lower()


def values(prefix, count):
    return [f"{prefix}-{i:04}" for i in range(count)]


def test_members_share_partitions_and_live_through_kill_of_the_broker(start_broker):
    broker = start_broker(topics={"t": PARTITIONS}, settings=SETTINGS)
    producer = ConfluentProducer(broker.bootstrap, "t")
    before, between = values("before", 200), values("between", 200)
    producer.send(before)
    one = Member(broker.bootstrap, "g")
    assert sorted(one.take(before)) == before
    one.consumer.commit(asynchronous=False)
    two = Member(broker.bootstrap, "g")
    assert until_shared([one, two]) == [], "what was committed is not read again"
    owned = [one.owned, two.owned]
    assert kind(broker.bootstrap, "g") == ("consumer", "stable")

    broker.kill()
    broker.restart()

    producer.send(between)
    got = []
    patience = Patience()
    while set(got) < set(between):
        patience.check(set(between) - set(got))
        got += one.poll() + two.poll()
    assert sorted(got) == between, "each once, by one of them"
    assert [one.owned, two.owned] == owned, "the restarted broker knew them, and moved nothing"
    for member in (one, two):
        member.consumer.commit(asynchronous=False)
        member.close()
    assert kind(broker.bootstrap, "g") == ("consumer", "empty")
    offsets = [TopicPartition("t", index) for index in range(PARTITIONS)]
    successor = Member(broker.bootstrap, "g")
    committed = sum(place.offset for place in successor.consumer.committed(offsets, timeout=60))
    assert committed == len(before) + len(between)
    successor.close()
    producer.close()


def test_a_group_changes_its_protocol_and_back_while_members_stay(start_broker):
    broker = start_broker(topics={"t": PARTITIONS}, settings=SETTINGS)
    old = [Member(broker.bootstrap, "g", "classic") for _ in range(2)]
    until_shared(old)
    assert kind(broker.bootstrap, "g") == ("classic", "stable")
    new = Member(broker.bootstrap, "g")
    until_shared([*old, new])
    assert kind(broker.bootstrap, "g")[0] == "consumer"
    old.pop().close()
    until_shared([*old, new])
    assert kind(broker.bootstrap, "g")[0] == "consumer"
    new.close()
    until_shared(old)
    assert kind(broker.bootstrap, "g") == ("classic", "stable")
    for member in old:
        member.close()
    new = Member(broker.bootstrap, "g")
    until_shared([new])
    assert kind(broker.bootstrap, "g") == ("consumer", "stable"), "an empty group takes the kind of who joins"
    new.close()
    old = Member(broker.bootstrap, "g", "classic")
    until_shared([old])
    assert kind(broker.bootstrap, "g") == ("classic", "stable")
    old.close()


def test_new_partitions_are_handed_out(start_broker):
    from confluent_kafka.admin import NewPartitions

    broker = start_broker(topics={"t": PARTITIONS - 1}, settings=SETTINGS)
    members = [Member(broker.bootstrap, "g", **{"topic.metadata.refresh.interval.ms": 500}) for _ in range(2)]
    patience = Patience()
    while sorted(members[0].owned + members[1].owned) != list(range(PARTITIONS - 1)):
        for member in members:
            member.poll()
        patience.check("partitions are not handed out")
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_partitions([NewPartitions("t", PARTITIONS)])["t"].result(60)
    until_shared(members)
    for member in members:
        member.close()


@pytest.mark.conformance
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_verifiable_consumers_share_partitions(start_broker, assignor):
    broker = start_broker(topics={"t": PARTITIONS}, settings=SETTINGS)
    where = ["--bootstrap-server", broker.bootstrap, "--topic", "t", "--group-id", "g", "--group-protocol", "consumer"]
    command = java_command(VERIFIABLE_CONSUMER, [*where, "--group-remote-assignor", assignor])
    tools = [Tool(command), Tool(command)]
    owned = [set(), set()]
    patience = Patience()
    while [len(one) for one in owned] != [2, 2] or owned[0] & owned[1]:
        for tool, own in zip(tools, owned, strict=True):
            for event in map(json.loads, tool.read(0.2)):
                places = {place["partition"] for place in event.get("partitions", []) if isinstance(place, dict)}
                if event["name"] == "partitions_assigned":
                    own |= places
                elif event["name"] == "partitions_revoked":
                    own -= places
        patience.check((owned, [tool.said() for tool in tools]))
    if assignor == "range":
        assert sorted(map(sorted, owned)) == [[0, 1], [2, 3]]
    for tool in tools:
        tool.terminate()

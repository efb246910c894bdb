"""CreateTopics, DeleteTopics, CreatePartitions, Metadata: names, counts, duplicates, ids."""

from differential.good import delete_request, fetch_request, list_offsets_request, metadata_request
from differential.table import case, simple
from differential.talk import NO_ID, Talk
from millstream.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

UNKNOWN_ID = b"\7" * 16


def create(t: Talk, *topics: CreatableTopic, validate_only: bool = False) -> None:
    """Asks for the topics, waits for those that were made, and looks at all of them."""
    made = t.ask(CreateTopicsRequest(list(topics), 30_000, validate_only))
    if made is not None and not validate_only:
        for one in made.topics:
            if not one.error_code:
                partitions = next(topic for topic in topics if topic.name == one.name).num_partitions
                t.await_topic(one.name, max(partitions, 1))
                t.learn(one.name)
    t.look(metadata_request(*sorted({topic.name for topic in topics})), 12)


def name_case(what: str, label: str, *, bare: bool = False) -> None:
    """A topic of this name; ``bare`` names are not made fresh, so they must be refused."""

    @case(f"a topic called {what}", CreateTopicsRequest, [2, 5, 7])
    def script(t: Talk) -> None:
        create(t, CreatableTopic(label if bare else t.name(label), 1, 1))


for _what, _label in {
    "by 249 characters": "x" * 238,
    "by 250 characters": "x" * 239,
    "with every legal character": "aZ09._",
    "with a space": "a b",
    "with a slash": "a/b",
    "with a colon": "a:b",
    "with an umlaut": "grün",
    "with a line feed": "a\nb",
    "with a NUL": "a\0b",
    "with two dots": "a..b",
}.items():
    name_case(_what, _label)
for _what, _label in {"nothing": "", "dot": ".", "two dots alone": ".."}.items():
    name_case(_what, _label, bare=True)


@case("two topics of one name", CreateTopicsRequest)
def _(t: Talk) -> None:
    name = t.name("a")
    create(t, CreatableTopic(name, 1, 1), CreatableTopic(name, 2, 1), CreatableTopic(t.name("b"), 1, 1))


@case("a topic that is there", CreateTopicsRequest)
def _(t: Talk) -> None:
    create(t, CreatableTopic(t.topic("a").name, 3, 1))


@case("a topic that collides with another", CreateTopicsRequest)
def _(t: Talk) -> None:
    t.topic("a.b")
    create(t, CreatableTopic(t.name("a_b"), 1, 1))


@case("two topics that collide in one request", CreateTopicsRequest)
def _(t: Talk) -> None:
    t.ask(CreateTopicsRequest([CreatableTopic(t.name("c.d"), 1, 1), CreatableTopic(t.name("c_d"), 1, 1)], 30_000))


for _partitions in (0, -1, -2, -(2**31)):

    @case(f"{_partitions} partitions", CreateTopicsRequest)
    def _(t: Talk, partitions: int = _partitions) -> None:
        create(t, CreatableTopic(t.name("a"), partitions, 1))


for _replicas in (0, -1, -2, 2, 32767):

    @case(f"{_replicas} replicas", CreateTopicsRequest)
    def _(t: Talk, replicas: int = _replicas) -> None:
        create(t, CreatableTopic(t.name("a"), 1, replicas))


@case("broker defaults for both", CreateTopicsRequest)
def _(t: Talk) -> None:
    create(t, CreatableTopic(t.name("a"), -1, -1))


def assigned(*parts: tuple[int, list[int]], partitions: int = -1, replicas: int = -1):
    def script(t: Talk) -> None:
        placed = [CreatableReplicaAssignment(index, brokers) for index, brokers in parts]
        create(t, CreatableTopic(t.name("a"), partitions, replicas, placed))

    return script


for _what, _script in {
    "replicas by hand": assigned((0, [1])),
    "two partitions by hand, out of order": assigned((1, [1]), (0, [1])),
    "replicas by hand on a broker that is not there": assigned((0, [9])),
    "replicas by hand on a negative broker": assigned((0, [-1])),
    "replicas by hand twice on one broker": assigned((0, [1, 1])),
    "replicas by hand on no broker": assigned((0, [])),
    "replicas by hand with a gap": assigned((0, [1]), (2, [1])),
    "replicas by hand that begin at 1": assigned((1, [1])),
    "replicas by hand twice for one partition": assigned((0, [1]), (0, [1])),
    "replicas by hand beside a number of partitions": assigned((0, [1]), partitions=1),
    "replicas by hand beside a number of replicas": assigned((0, [1]), replicas=1),
    "replicas by hand for partition -1": assigned((-1, [1])),
    "replicas by hand of different length": assigned((0, [1]), (1, [1, 1])),
}.items():
    case(_what, CreateTopicsRequest, [2, 5, 7])(_script)


def configured(*pairs: tuple[str, str | None]):
    def script(t: Talk) -> None:
        settings = [CreatableTopicConfig(name, value) for name, value in pairs]
        t.ask(CreateTopicsRequest([CreatableTopic(t.name("a"), 1, 1, [], settings)], 30_000), 4)
        t.fence()
        t.look(metadata_request(t.name("a")), 9)

    return script


for _what, _script in {
    "a property that does not exist": configured(("no.such.property", "1")),
    "a property without a name": configured(("", "1")),
    "a property without a value": configured(("retention.ms", None)),
    "a property twice": configured(("retention.ms", "1000"), ("retention.ms", "2000")),
    "a good property and a bad one": configured(("retention.ms", "1000"), ("segment.bytes", "x")),
}.items():
    case(_what, CreateTopicsRequest, [4])(_script)


@case("only to be checked", CreateTopicsRequest)
def _(t: Talk) -> None:
    create(t, CreatableTopic(t.name("a"), 2, 1), CreatableTopic(t.name("b"), 0, 1), validate_only=True)


@case("no topics", CreateTopicsRequest)
def _(t: Talk) -> None:
    t.ask(CreateTopicsRequest([], 30_000))


for _timeout in (0, -1):

    @case(f"a timeout of {_timeout}", CreateTopicsRequest)
    def _(t: Talk, timeout: int = _timeout) -> None:
        t.ask(CreateTopicsRequest([CreatableTopic(t.name(" bad"), 1, 1)], timeout))


@case("internal names", CreateTopicsRequest, [7])
def _(t: Talk) -> None:
    t.ask(CreateTopicsRequest([CreatableTopic("__consumer_offsets", 1, 1)], 30_000))
    create(t, CreatableTopic(t.name("__mine"), 1, 1))


# DeleteTopics


@case("a topic and one that is not there", DeleteTopicsRequest)
def _(t: Talk) -> None:
    topic = t.filled(3)
    t.ask(delete_request(topic.name, t.name("none")))
    t.fence()
    t.look(metadata_request(topic.name))
    t.look(fetch_request(topic, 0))
    t.look(list_offsets_request(topic.name, -1))


@case("a topic twice", DeleteTopicsRequest)
def _(t: Talk) -> None:
    name = t.topic().name
    t.ask(delete_request(name, name))


@case("a topic that is made again", DeleteTopicsRequest)
def _(t: Talk) -> None:
    topic = t.filled(3)
    t.ask(delete_request(topic.name))
    t.fence()
    again = t.topic("a")
    t.look(list_offsets_request(again.name, -1, -2))
    t.look(fetch_request(topic, 0))


@case("no topics", DeleteTopicsRequest)
def _(t: Talk) -> None:
    t.ask(delete_request())


for _name in ("", ".", "a b"):
    simple(f"a name that cannot be: {_name!r}", lambda t, name=_name: delete_request(name), DeleteTopicsRequest)


@case("by id", DeleteTopicsRequest, [6])
def _(t: Talk) -> None:
    topic = t.topic()
    ids = [topic.id, UNKNOWN_ID]
    t.ask(DeleteTopicsRequest([DeleteTopicState(None, one) for one in ids], [], 30_000))
    t.fence()
    t.look(metadata_request(topic.name))


@case("by name and by id", DeleteTopicsRequest, [6])
def _(t: Talk) -> None:
    topic = t.topic()
    t.ask(DeleteTopicsRequest([DeleteTopicState(topic.name), DeleteTopicState(None, topic.id)], [], 30_000))


@case("by both at once", DeleteTopicsRequest, [6])
def _(t: Talk) -> None:
    topic = t.topic()
    t.ask(DeleteTopicsRequest([DeleteTopicState(topic.name, topic.id)], [], 30_000))
    t.look(metadata_request(topic.name))


@case("by neither", DeleteTopicsRequest, [6])
def _(t: Talk) -> None:
    t.ask(DeleteTopicsRequest([DeleteTopicState(None, NO_ID)], [], 30_000))


@case("an id twice", DeleteTopicsRequest, [6])
def _(t: Talk) -> None:
    topic = t.topic()
    t.ask(DeleteTopicsRequest([DeleteTopicState(None, topic.id), DeleteTopicState(None, topic.id)], [], 30_000))


# CreatePartitions


def grow(t: Talk, *wanted: CreatePartitionsTopic, validate_only: bool = False) -> None:
    t.ask(CreatePartitionsRequest(list(wanted), 30_000, validate_only))
    t.fence()
    t.look(metadata_request(*sorted({one.name for one in wanted if one.name})))


for _count in (3, 2, 1, 0, -1):

    @case(f"two partitions to {_count}", CreatePartitionsRequest)
    def _(t: Talk, count: int = _count) -> None:
        grow(t, CreatePartitionsTopic(t.topic("a", 2).name, count, None))


@case("a topic that is not there", CreatePartitionsRequest)
def _(t: Talk) -> None:
    grow(t, CreatePartitionsTopic(t.name("none"), 2, None))


@case("a topic without a name", CreatePartitionsRequest)
def _(t: Talk) -> None:
    t.ask(CreatePartitionsRequest([CreatePartitionsTopic("", 2, None)], 30_000))


@case("a topic twice", CreatePartitionsRequest)
def _(t: Talk) -> None:
    name = t.topic().name
    grow(t, CreatePartitionsTopic(name, 2, None), CreatePartitionsTopic(name, 3, None))


@case("only to be checked", CreatePartitionsRequest)
def _(t: Talk) -> None:
    grow(t, CreatePartitionsTopic(t.topic().name, 5, None), validate_only=True)


@case("no topics", CreatePartitionsRequest)
def _(t: Talk) -> None:
    t.ask(CreatePartitionsRequest([], 30_000))


for _what, _brokers in {
    "on this broker": [[1], [1]],
    "on another broker": [[9], [1]],
    "for too few": [[1]],
    "for too many": [[1], [1], [1]],
    "with no brokers": [[], [1]],
    "twice on one broker": [[1, 1], [1, 1]],
    "of none": [],
}.items():

    @case(f"an assignment {_what}", CreatePartitionsRequest)
    def _(t: Talk, brokers: list[list[int]] = _brokers) -> None:
        placed = [CreatePartitionsAssignment(one) for one in brokers]
        grow(t, CreatePartitionsTopic(t.topic().name, 3, placed))


# Metadata


@case("topics that are there and not", MetadataRequest)
def _(t: Talk) -> None:
    one, two = t.topic("a", 2), t.topic("b")
    t.ask(metadata_request(one.name, t.name("none"), two.name))


@case("a topic twice", MetadataRequest)
def _(t: Talk) -> None:
    name = t.topic().name
    t.ask(metadata_request(name, name))


@case("all topics", MetadataRequest)
def _(t: Talk) -> None:
    t.topic("a")
    t.ask(MetadataRequest(None if t.version else [], False))


@case("no topics", MetadataRequest, range(1, 14))
def _(t: Talk) -> None:
    t.ask(MetadataRequest([], False))


@case("created by asking", MetadataRequest)
def _(t: Talk) -> None:
    name = t.name("auto")
    t.ask(metadata_request(name, create=True))
    t.until(metadata_request(name), lambda answer: not answer.topics[0].error_code, 9)
    t.await_topic(name)
    t.learn(name)
    t.look(metadata_request(name))


@case("asked for after its deletion", MetadataRequest)
def _(t: Talk) -> None:
    topic = t.topic("a")
    t.quiet(delete_request(topic.name))
    t.until(metadata_request(topic.name), lambda answer: answer.topics[0].error_code != 0, 9)
    t.ask(metadata_request(topic.name, create=True))
    t.until(metadata_request(topic.name), lambda answer: not answer.topics[0].error_code, 9)
    t.await_topic(topic.name)
    t.learn(topic.name)
    t.look(metadata_request(topic.name))


@case("asked for with another that is created", MetadataRequest, [4, 12])
def _(t: Talk) -> None:
    t.ask(metadata_request(t.topic("a").name, t.name("auto"), create=True))


for _name in ("", ".", "..", "a b", "grün", "x" * 250, "a\0"):

    @case(f"a name that cannot be: {_name[:6]!r}", MetadataRequest)
    def _(t: Talk, name: str = _name) -> None:
        t.ask(metadata_request(name, create=True))
        t.ask(metadata_request(name, create=False))


@case("created beside a name it collides with", MetadataRequest, [4, 12])
def _(t: Talk) -> None:
    t.topic("a.b")
    t.ask(metadata_request(t.name("a_b"), create=True))


@case("with authorized operations", MetadataRequest, range(8, 14))
def _(t: Talk) -> None:
    t.ask(MetadataRequest([MetadataRequestTopic(name=t.topic().name)], False, True, True))


@case("authorized operations of a topic that is not there", MetadataRequest, range(8, 14))
def _(t: Talk) -> None:
    t.ask(MetadataRequest([MetadataRequestTopic(name=t.name("none"))], False, False, True))


@case("by id", MetadataRequest, range(10, 14))
def _(t: Talk) -> None:
    t.ask(MetadataRequest([MetadataRequestTopic(t.topic().id, None), MetadataRequestTopic(UNKNOWN_ID, None)], False))


@case("by id and by name", MetadataRequest, range(10, 14))
def _(t: Talk) -> None:
    topic = t.topic()
    t.ask(MetadataRequest([MetadataRequestTopic(topic.id, None), MetadataRequestTopic(name=topic.name)], False))


@case("by both at once", MetadataRequest, range(10, 14))
def _(t: Talk) -> None:
    topic = t.topic()
    t.ask(MetadataRequest([MetadataRequestTopic(topic.id, topic.name)], False))


@case("by neither", MetadataRequest, range(10, 14))
def _(t: Talk) -> None:
    t.ask(MetadataRequest([MetadataRequestTopic(NO_ID, None)], False))


@case("the internal topic", MetadataRequest, [1, 12])
def _(t: Talk) -> None:
    answer = t.quiet(metadata_request("__consumer_offsets"), 12)
    t.note("internal", [answer.topics[0].error_code, answer.topics[0].is_internal, len(answer.topics[0].partitions)])


# DescribeCluster

for _kind in (0, 1, 2, 3):
    simple(
        f"endpoints of type {_kind}",
        lambda t, kind=_kind: DescribeClusterRequest(False, kind),
        DescribeClusterRequest,
    )
simple("with authorized operations", lambda t: DescribeClusterRequest(True), DescribeClusterRequest)
simple("with fenced brokers", lambda t: DescribeClusterRequest(False, 1, True), DescribeClusterRequest)

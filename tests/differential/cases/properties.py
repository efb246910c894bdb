"""Every topic property of Kafka 4.3 with good, boundary and bad values; DescribeConfigs, the two ways to alter.

``VALUES`` names what each property is given, through CreateTopics and through IncrementalAlterConfigs; the names are
those that a Kafka 4.3.1 lists for a new topic, which a case of its own compares.
"""

from differential.good import alter_request, describe_request, metadata_request
from differential.good_admin import GOOD_ADMIN
from differential.table import case
from differential.talk import Talk
from millstream.wire.messages import alter_configs
from millstream.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGERS, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
INT, LONG = 2**31 - 1, 2**63 - 1

_numbers = ["x", "", "1.5", " 7", "1e3", "0x10"]
_booleans = ["true", "false", "TRUE", " true", "yes", "1", ""]


def _range(low: int, high: int, *more: object) -> list[str]:
    return [str(one) for one in (low - 1, low, high, high + 1, *more)] + _numbers


VALUES: dict[str, list[str]] = {
    "cleanup.policy": [
        "compact",
        "delete",
        "delete,compact",
        "compact, delete",
        "delete,delete",
        "",
        "x",
        "Delete",
        "none",
    ],
    "compression.gzip.level": _range(-1, 9, 0, 1),
    "compression.lz4.level": _range(1, 17),
    "compression.type": ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd", "GZIP", "none", ""],
    "compression.zstd.level": _range(-131072, 22),
    "delete.retention.ms": _range(0, LONG),
    "file.delete.delay.ms": _range(0, LONG),
    "flush.messages": _range(1, LONG),
    "flush.ms": _range(0, LONG),
    "follower.replication.throttled.replicas": ["", "*", "0:1", "0:1,1:2", "0", "x", "0:1,", "a:b"],
    "index.interval.bytes": _range(0, INT),
    "leader.replication.throttled.replicas": ["", "*", "0:1", "0:1,1:2", "0", "x", "0:1,", "a:b"],
    "local.retention.bytes": _range(-2, LONG, -1, 0, 1),
    "local.retention.ms": _range(-2, LONG, -1, 0, 1),
    "max.compaction.lag.ms": _range(1, LONG),
    "max.message.bytes": _range(0, INT, 1000, 1_048_576),
    "message.timestamp.after.max.ms": _range(0, LONG),
    "message.timestamp.before.max.ms": _range(0, LONG),
    "message.timestamp.type": ["CreateTime", "LogAppendTime", "createtime", "NoTimestampType", "x", ""],
    "min.cleanable.dirty.ratio": ["0", "0.5", "1", "1.0", "1.1", "-0.1", "1e-3", "NaN", "x", "", "Infinity"],
    "min.compaction.lag.ms": _range(0, LONG),
    "min.insync.replicas": _range(1, INT, 2),
    "preallocate": _booleans,
    "remote.copy.lag.bytes": _range(0, LONG, -1),
    "remote.copy.lag.ms": _range(0, LONG, -1),
    "remote.log.copy.disable": _booleans,
    "remote.log.delete.on.disable": _booleans,
    "remote.storage.enable": _booleans,
    "retention.bytes": _range(-1, LONG, -2, 0),
    "retention.ms": _range(-1, LONG, -2, 0),
    "segment.bytes": _range(1_048_576, INT, 1000),
    "segment.index.bytes": ["3", "0", "-1", "1000", str(INT), str(INT + 1), "x", "", "1.5", "1e3"],
    "segment.jitter.ms": _range(0, LONG),
    "segment.ms": _range(1, LONG, 0),
    "unclean.leader.election.enable": _booleans,
    "message.format.version": ["3.0"],
    "message.downconversion.enable": ["true"],
    "internal.segment.bytes": ["1000"],
    "Retention.Ms": ["1000"],
    "retention.ms ": ["1000"],
}


def property_of(t: Talk, topic: str, name: str) -> list[object]:
    """What a topic says about one of its properties: value, source, and what else would have set it."""
    result = t.quiet(describe_request(topic, name, include_synonyms=True), 4).results[0]
    return [
        [one.value, one.config_source, [[other.name, other.value, other.source] for other in one.synonyms]]
        for one in result.configs
    ]


def created(t: Talk, name: str, value: str | None, number: int) -> None:
    """A topic with one property; what the answer and the topic say."""
    topic = t.name(f"t{number}")
    wanted = CreatableTopic(topic, 1, 1, [], [CreatableTopicConfig(name, value)])
    (answer,) = t.quiet(CreateTopicsRequest([wanted], 30_000), 6).topics
    told = [one.value for one in answer.configs or () if one.name == name]
    seen: dict[str, object] = {"error": answer.error_code, "text": bool(answer.error_message), "told": told}
    if not answer.error_code:
        t.await_topic(topic)
        seen["has"] = property_of(t, topic, name)
    t.note(f"to {value!r}", seen)


def altered(t: Talk, topic: str, name: str, value: str | None, operation: int = SET) -> None:
    """A change of one property; what the answer and the topic say."""
    (answer,) = t.quiet(alter_request(topic, (name, value), operation=operation), 1).responses
    t.fence()
    seen = {"error": answer.error_code, "text": bool(answer.error_message), "has": property_of(t, topic, name)}
    t.note(f"to {value!r}", seen)


for _name, _values in VALUES.items():

    @case(f"created with {_name!r}", CreateTopicsRequest, [6])
    def _(t: Talk, name: str = _name, values: list[str] = _values) -> None:
        for number, value in enumerate(values):
            created(t, name, value, number)

    @case(f"set {_name!r}", IncrementalAlterConfigsRequest, [1])
    def _(t: Talk, name: str = _name, values: list[str] = _values) -> None:
        topic = t.topic().name
        for value in values:
            altered(t, topic, name, value)
        altered(t, topic, name, None, DELETE)


@case("every property of a new topic", DescribeConfigsRequest)
def _(t: Talk) -> None:
    t.ask(describe_request(t.topic().name, include_synonyms=True, include_documentation=True))


@case("every property in the answer", CreateTopicsRequest, [5, 7])
def _(t: Talk) -> None:
    t.names.all_configs = True
    t.ask(
        CreateTopicsRequest(
            [CreatableTopic(t.name("a"), 1, 1, [], [CreatableTopicConfig("retention.ms", "5")])], 30_000
        )
    )


# DescribeConfigs


@case("chosen properties, some not there", DescribeConfigsRequest)
def _(t: Talk) -> None:
    name = t.topic(retention_ms=1000, cleanup_policy="compact").name
    t.ask(describe_request(name, "retention.ms", "no.such", "cleanup.policy", "retention.ms"))
    t.ask(describe_request(name, "retention.ms", include_synonyms=True, include_documentation=True))
    t.ask(DescribeConfigsRequest([DescribeConfigsResource(TOPIC, name, [])]))


@case("topics that are not there", DescribeConfigsRequest)
def _(t: Talk) -> None:
    for name in (t.name("none"), "", "a b", "..", "x" * 250):
        t.ask(describe_request(name, "retention.ms"))


@case("a topic twice", DescribeConfigsRequest)
def _(t: Talk) -> None:
    one = DescribeConfigsResource(TOPIC, t.topic().name, ["retention.ms"])
    t.ask(DescribeConfigsRequest([one, one]))


@case("nothing", DescribeConfigsRequest)
def _(t: Talk) -> None:
    t.ask(DescribeConfigsRequest([]))


for _kind in (0, 1, 3, LOGGERS, CLIENT_METRICS, GROUP, 64, -1):

    @case(f"resources of type {_kind}", DescribeConfigsRequest)
    def _(t: Talk, kind: int = _kind) -> None:
        answer = t.ask(describe_request(t.name("r"), kind=kind), note=False)
        errors = [] if answer is None else [(one.error_code, bool(one.error_message)) for one in answer.results]
        t.note("errors", [list(one) for one in errors])


@case("the broker", DescribeConfigsRequest)
def _(t: Talk) -> None:
    for name in ("1", "", "9", "x", "-1"):
        t.ask(describe_request(name, "message.max.bytes", "no.such", kind=BROKER))
    t.ask(describe_request("1", "message.max.bytes", "log.retention.ms", kind=BROKER, include_synonyms=True))


# IncrementalAlterConfigs


def alter(t: Talk, *configs: tuple[str, int, str | None], **topic: object) -> None:
    """Changes of one topic in one request, and what it then has of its own."""
    name = t.topic("a", **topic).name
    entries = [AlterableConfig(*one) for one in configs]
    t.ask(IncrementalAlterConfigsRequest([AlterConfigsResource(TOPIC, name, entries)]))
    t.fence()
    t.look(describe_request(name, "retention.ms", "cleanup.policy", "segment.bytes"), 4)


for _what, _configs in {
    "two properties": [("retention.ms", SET, "5"), ("segment.bytes", SET, "2000000")],
    "a good one and a bad one": [("retention.ms", SET, "5"), ("segment.bytes", SET, "x")],
    "a good one and an unknown one": [("retention.ms", SET, "5"), ("no.such", SET, "x")],
    "one twice": [("retention.ms", SET, "5"), ("retention.ms", SET, "6")],
    "one set and deleted": [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)],
    "none": [],
    "one without a value": [("retention.ms", SET, None)],
    "one deleted that is not set": [("retention.ms", DELETE, None)],
    "one deleted with a value": [("retention.ms", DELETE, "5")],
    "an unknown one deleted": [("no.such", DELETE, None)],
    "one without a name": [("", SET, "5")],
    "a list appended to": [("cleanup.policy", APPEND, "compact")],
    "a list appended to with what it has": [("cleanup.policy", APPEND, "delete")],
    "a list appended to with what it cannot have": [("cleanup.policy", APPEND, "x")],
    "a list appended to without a value": [("cleanup.policy", APPEND, None)],
    "a list subtracted from": [("cleanup.policy", SUBTRACT, "delete")],
    "a list subtracted from what it has not": [("cleanup.policy", SUBTRACT, "compact")],
    "a number appended to": [("retention.ms", APPEND, "5")],
    "a number subtracted from": [("retention.ms", SUBTRACT, "5")],
    "an operation that does not exist": [("retention.ms", 4, "5")],
    "operation -1": [("retention.ms", -1, "5")],
}.items():

    @case(_what, IncrementalAlterConfigsRequest)
    def _(t: Talk, configs: list[tuple[str, int, str | None]] = _configs) -> None:
        alter(t, *configs)


@case("only to be checked", IncrementalAlterConfigsRequest)
def _(t: Talk) -> None:
    name = t.topic().name
    for value in ("5", "x"):
        entry = AlterConfigsResource(TOPIC, name, [AlterableConfig("retention.ms", SET, value)])
        t.ask(IncrementalAlterConfigsRequest([entry], True))
    t.fence()
    t.look(describe_request(name, "retention.ms"), 4)


@case("topics that are not there", IncrementalAlterConfigsRequest)
def _(t: Talk) -> None:
    for name in (t.name("none"), "", "a b"):
        t.ask(alter_request(name, ("retention.ms", "5")))


@case("a topic twice", IncrementalAlterConfigsRequest)
def _(t: Talk) -> None:
    name = t.topic().name
    one = AlterConfigsResource(TOPIC, name, [AlterableConfig("retention.ms", SET, "5")])
    two = AlterConfigsResource(TOPIC, name, [AlterableConfig("retention.ms", SET, "6")])
    t.ask(IncrementalAlterConfigsRequest([one, two]))
    t.fence()
    t.look(describe_request(name, "retention.ms"), 4)


@case("a good topic and a bad one", IncrementalAlterConfigsRequest)
def _(t: Talk) -> None:
    names = (t.topic("a").name, t.name("none"))
    entries = [AlterConfigsResource(TOPIC, name, [AlterableConfig("retention.ms", SET, "5")]) for name in names]
    t.ask(IncrementalAlterConfigsRequest(entries))
    t.fence()
    t.look(describe_request(names[0], "retention.ms"), 4)


@case("nothing", IncrementalAlterConfigsRequest)
def _(t: Talk) -> None:
    t.ask(IncrementalAlterConfigsRequest([]))


for _kind in (0, 1, 3, 64, -1):

    @case(f"resources of type {_kind}", IncrementalAlterConfigsRequest)
    def _(t: Talk, kind: int = _kind) -> None:
        t.ask(alter_request(t.name("r"), ("retention.ms", "5"), kind=kind))


@case("brokers that cannot be", IncrementalAlterConfigsRequest)
def _(t: Talk) -> None:
    for name in ("9", "x", "-1"):
        t.ask(alter_request(name, ("log.cleaner.backoff.ms", "5"), kind=BROKER))


@case("settings of running brokers", IncrementalAlterConfigsRequest)
def _(t: Talk) -> None:
    for name, value in (
        ("log.cleaner.backoff.ms", "15000"),
        ("log.cleaner.dedupe.buffer.size", "134217728"),
        ("log.cleaner.io.buffer.load.factor", "0.9"),
        ("log.cleaner.io.max.bytes.per.second", "1e9"),
        ("log.cleaner.io.buffer.size", "524288"),
        ("log.cleaner.threads", "1"),
        ("background.threads", "10"),
        ("num.io.threads", "8"),
        ("num.network.threads", "3"),
        ("num.recovery.threads.per.data.dir", "2"),
        ("num.replica.fetchers", "1"),
        ("num.io.threads", "many"),
        ("queued.max.requests", "500"),
    ):
        t.ask(alter_request("", (name, value), kind=BROKER, validate=True))


# AlterConfigs


def replace(t: Talk, name: str, *configs: tuple[str, str | None], kind: int = TOPIC, validate: bool = False) -> None:
    entries = [alter_configs.AlterableConfig(key, value) for key, value in configs]
    t.ask(alter_configs.AlterConfigsRequest([alter_configs.AlterConfigsResource(kind, name, entries)], validate))
    t.fence()
    if kind == TOPIC:
        t.look(describe_request(name, "retention.ms", "cleanup.policy", "segment.bytes"), 4)


for _what, _configs in {
    "another property": [("cleanup.policy", "compact")],
    "the same property": [("retention.ms", "7")],
    "none": [],
    "a bad value": [("retention.ms", "x")],
    "no value": [("retention.ms", None)],
    "an unknown property": [("no.such", "1")],
    "one twice": [("retention.ms", "7"), ("retention.ms", "8")],
}.items():

    @case(f"to {_what}", alter_configs.AlterConfigsRequest)
    def _(t: Talk, configs: list[tuple[str, str | None]] = _configs) -> None:
        replace(t, t.topic(retention_ms=5).name, *configs)


@case("only to be checked", alter_configs.AlterConfigsRequest)
def _(t: Talk) -> None:
    replace(t, t.topic(retention_ms=5).name, ("retention.ms", "7"), validate=True)


@case("of a topic that is not there", alter_configs.AlterConfigsRequest)
def _(t: Talk) -> None:
    t.ask(GOOD_ADMIN[33](t))
    for name in (t.name("none"), ""):
        t.ask(
            alter_configs.AlterConfigsRequest(
                [alter_configs.AlterConfigsResource(TOPIC, name, [alter_configs.AlterableConfig("retention.ms", "1")])]
            )
        )
    t.look(metadata_request(t.name("none")))


for _kind in (0, 1, 3, 64, -1):

    @case(f"resources of type {_kind}", alter_configs.AlterConfigsRequest)
    def _(t: Talk, kind: int = _kind) -> None:
        replace(t, t.name("r"), ("retention.ms", "5"), kind=kind)


for _types in ([], [TOPIC], [BROKER], [LOGGERS], [CLIENT_METRICS], [GROUP], [0], [3], [-1], [TOPIC, TOPIC]):

    @case(f"of types {_types}", ListConfigResourcesRequest)
    def _(t: Talk, types: list[int] = _types) -> None:
        t.topic()
        answer = t.ask(ListConfigResourcesRequest(types), note=False)
        listed = {(one.resource_type, t.names.text(one.resource_name)) for one in answer.config_resources}
        mine = sorted([kind, name] for kind, name in listed if name in ("a", "1"))
        t.note("listed", {"error_code": answer.error_code, "mine": mine})

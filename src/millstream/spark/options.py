"""The options of a query, declared once: name, meaning, default, form.

Names are those of Spark's Kafka connector if it has the option, so that a job changes only its format name; our own
options stand beside them. Spark ignores the case of option names. An unknown option is refused with the nearest known
name, and a malformed value is refused, because a misspelt ``failOnDataloss`` must not be ignored. Options that the
connector needs and this source does not (consumer groups) are accepted if they have no effect, and documented so. So is
every other ``kafka.*`` option of a Kafka client: ``tell_ignored`` names those in one line of the log. Those with which
the connector would contradict itself (deserializers, ``auto.offset.reset``) are refused, as it does.

``option_table`` is the documentation.
"""

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from millstream.client.schema_registry import RegistryAccess, is_registry_name, registry_access
from millstream.client.security import PLAIN, Security, read_security
from millstream.errors import Rejected
from millstream.spark.wanted import BYTE_LIMIT, ROW_LIMIT

_LOG: Final = logging.getLogger("millstream.spark")

READ: Final = "read"
WRITE: Final = "write"
BOTH: Final = "read, write"


class Option(msgspec.Struct, frozen=True):
    """One option: its parser and its description. ``default`` applies if the query does not set it."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    doc: str
    use: str = READ


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def _count(value: str) -> int:
    if not value.strip().isdecimal() or int(value) < 1:
        raise ValueError("must be a whole number above 0")
    return int(value)


def _millis(value: str) -> int:
    if not value.strip().lstrip("-").isdecimal():
        raise ValueError("must be a time in ms since 1970")
    return int(value)


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
        raise ValueError("must be a name of letters, digits, dot, dash and underscore")
    return value


def _number(value: str) -> int:
    if not value.strip().isdecimal():
        raise ValueError("must be a whole number")
    return int(value)


_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _size(value: str) -> int:
    digits = value.strip().lower().removesuffix("b").removesuffix("i")
    unit = digits[-1:] if digits[-1:] in ("k", "m", "g") else ""
    number = digits.removesuffix(unit).strip()
    if not number.isdecimal() or int(number) < 1:
        raise ValueError("must be a size such as 128m or 1500000")
    return int(number) * _SIZES[unit]


_DURATIONS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "": 1}


def _duration(value: str) -> int:
    number = value.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = value.strip()[len(number) :].strip()
    if not number.isdecimal() or unit not in _DURATIONS:
        raise ValueError("must be a duration such as 500ms, 30s or 15m")
    return int(number) * _DURATIONS[unit]


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return value.lower()

    return parse


def _offsets(value: str) -> Any:
    """``earliest``, ``latest`` or offsets per partition."""
    if value.lower() in ("earliest", "latest"):
        return value.lower()
    try:
        return _per_partition(value)
    except ValueError as error:
        raise ValueError(f"must be earliest or latest, or {str(error).removeprefix('must be ')}") from None


def _per_partition(value: str) -> dict[tuple[str, int], int]:
    try:
        decoded: object = json.loads(value)
        assert isinstance(decoded, dict)
        return {
            (str(topic), int(partition)): int(offset)
            for topic, partitions in decoded.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AssertionError, AttributeError, TypeError):
        raise ValueError('must be JSON such as {"orders": {"0": 23, "1": -2}}') from None


def _assignment(value: str) -> dict[str, tuple[int, ...]]:
    try:
        decoded: object = json.loads(value)
        assert isinstance(decoded, dict) and decoded
        return {str(topic): tuple(sorted({int(p) for p in partitions})) for topic, partitions in decoded.items()}
    except (ValueError, AssertionError, TypeError):
        raise ValueError('must be JSON such as {"orders": [0, 1]}') from None


def _names(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError("must name at least one topic")
    return names


OPTIONS: Final[tuple[Option, ...]] = (
    Option("kafka.bootstrap.servers", _text, None, "Addresses of brokers as host:port, separated by commas.", BOTH),
    Option("subscribe", _names, None, "Names of the topics to read, separated by commas."),
    Option(
        "subscribePattern", _text, None,
        "Regular expression (Python's) of the topics to read. It may match a part of a name: ^orders$ is orders alone.",
    ),
    Option("assign", _assignment, None, 'Partitions to read: {"orders": [0, 1]}.'),
    Option(
        "startingOffsets", _offsets, None,
        "Start of a new query: earliest, latest or JSON per partition (-2 earliest, -1 latest). Default: "
        "earliest for a batch, latest for a stream. It has no effect on a stream that continues from a "
        "checkpoint, and on partitions that appear later.",
    ),
    Option("startingTimestamp", _millis, None, "Start every partition at its first record of this time (ms) or later."),
    Option("startingOffsetsByTimestamp", _per_partition, None, "startingTimestamp per partition, as JSON."),
    Option(
        "startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error",
        "Behaviour for a partition without a record that late: error fails, latest starts at its end.",
    ),
    Option(
        "endingOffsets", _offsets, None,
        "End (exclusive) of a batch: latest or JSON per partition. Of a stream: JSON per partition, where it stops for "
        "good; partitions without one are not read.",
    ),
    Option("endingTimestamp", _millis, None, "End every partition before its first record of this time (ms)."),
    Option("endingOffsetsByTimestamp", _per_partition, None, "endingTimestamp per partition, as JSON."),
    Option("maxOffsetsPerTrigger", _count, None, "Maximum offsets in a micro-batch, divided by backlog."),
    Option("maxBytesPerTrigger", _size, None, "Maximum bytes of log in a micro-batch, estimated from segment sizes."),
    Option("minOffsetsPerTrigger", _count, None, "Minimum offsets in a micro-batch; the query waits for them."),
    Option("maxTriggerDelay", _duration, 900_000, "Maximum wait for minOffsetsPerTrigger."),
    Option("minPartitions", _count, None, "Minimum number of Spark tasks, if there is enough to read."),
    Option("maxRecordsPerPartition", _count, None, "Maximum offsets in one Spark task."),
    Option(
        "failOnDataLoss", _boolean, True,
        "Whether the query fails if records were deleted before they were read (retention, topic deleted or "
        "created again). false: log the loss and continue.",
    ),
    Option(
        "value.format", _one_of("raw", "string", "json", "avro", "protobuf"), "raw",
        "Form of the values. raw: the columns of the topic. Others: the fields of the value as typed columns, beside "
        "them _key, _topic, _partition, _offset, _timestamp, and _error and _value: the reason and the bytes where a "
        "record does not decode.",
    ),
    Option("value.schema", _text, None, "Fields of JSON values, in Spark DDL: id bigint not null, name string."),
    Option(
        "schema.registry.url", _text, None,
        "Schema registry for records with schema ids: avro, protobuf, and json with JSON Schema. With "
        "basic.auth.*, bearer.auth.* and schema.registry.ssl.*, by Confluent's names; values as of "
        "kafka.security.protocol. Without them the brokers' login is used, if the registry is on a host of theirs.",
    ),
    Option("value.subject", _text, None, "Subject whose latest schema the columns have; <topic>-value."),
    Option("value.message", _text, None, "Protobuf message that the columns are of, named in full; the first one."),
    Option(
        "events", _boolean, False,
        "Whether the topic is an event topic: columns are the fields of the metadata (value.schema, or inferred from "
        "the first events); beside them _topic, _partition, _offset, _timestamp, _size, _descriptor, _error, _value.",
    ),
    Option(
        "events.data", _one_of("descriptor", "read"), "descriptor",
        "descriptor: data are not read; event_data() fetches them by _descriptor. read: they are in the column _data.",
    ),
    Option(
        "includeHeaders", _boolean, False,
        "Reading: whether the column headers is added. Writing: without effect, headers are written if the rows have "
        "them.", BOTH,
    ),
    Option("fetchOffset.numRetries", _count, 3, "Accepted without effect; kafka.request.timeout.ms limits retries."),
    Option("fetchOffset.retryIntervalMs", _duration, 10, "Accepted without effect."),
    Option("kafkaConsumer.pollTimeoutMs", _duration, None, "Accepted without effect; see kafka.request.timeout.ms."),
    Option("groupIdPrefix", _text, None, "Accepted without effect: this source joins no consumer group."),
    Option("kafka.group.id", _text, None, "Accepted without effect: this source joins no consumer group."),
    Option("kafka.client.id", _text, "millstream-spark", "Client id in the brokers' logs and metrics.", BOTH),
    Option("kafka.request.timeout.ms", _duration, 30_000, "Time limit of a request, retries included.", BOTH),
    Option("kafka.max.partition.fetch.bytes", _size, 4 << 20, "Maximum bytes of one fetch from a broker."),
    Option("kafka.fetch.max.bytes", _size, None, "As kafka.max.partition.fetch.bytes; the smaller value applies."),
    Option(
        "kafka.isolation.level", _one_of("read_committed", "read_uncommitted"), "read_committed",
        "read_committed leaves out records of open and aborted transactions.",
    ),
    Option(
        "kafka.security.protocol", _one_of("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"), "plaintext",
        "As of a Kafka client, with kafka.ssl.* and kafka.sasl.* in Java's or librdkafka's spelling. Values may be "
        "${env:NAME} or ${file:PATH}, so that Spark's UI shows no secret; the driver resolves them.", BOTH,
    ),
    Option(
        "read.path", _one_of("auto", "segments", "broker"), "auto",
        "auto: sealed segments from their files or, of tiered topics, from the object store, if these can be opened; "
        "the rest from brokers. segments: fail if a sealed segment cannot be opened. broker: everything from brokers.",
    ),
    Option("manifest.url", _text, None, "HTTP address of the manifest; default: the broker's own setting."),
    Option("objects.url", _text, None, "Object store of tiered topics; default: the URL that the broker uses."),
    Option(
        "filter.pushdown", _boolean, False,
        "Whether the query's filters on offset, timestamp, partition and topic are applied while planning and "
        "reading. Only for a DataFrame that is used with one filter: Spark keeps the last filter for its other "
        "uses. Needs spark.sql.python.filterPushdown.enabled.",
    ),
    Option("split.bytes", _size, 128 << 20, "Target size of one Spark task, in bytes of log."),
    Option("batch.rows", _count, ROW_LIMIT, "Maximum rows of one Arrow batch."),
    Option("batch.bytes", _size, BYTE_LIMIT, "Maximum bytes of one Arrow batch, unless a single record is larger."),
    Option("stats.dir", _text, None, "Directory for counts of rows by origin (millstream.spark.read_stats)."),
    Option("topic", _text, None, "Topic to write to; it goes before a column topic of the rows.", WRITE),
    Option(
        "delivery", _one_of("exactly-once", "at-least-once"), "exactly-once",
        "Guarantee for written rows. exactly-once: in transactions, for read_committed readers. at-least-once: rows of "
        "a repeated task or batch are written again.", WRITE,
    ),
    Option(
        "write.id", _name, None,
        "Name of a batch write: the same name writes once, however often the job is run. Not for streams, whose "
        "checkpoint names them.", WRITE,
    ),
    Option(
        "write.number", _number, 0,
        "Number of a write among those of its write.id, rising: the batch id in a foreachBatch.", WRITE,
    ),
    Option(
        "kafka.transaction.timeout.ms", _duration, 900_000,
        "Maximum time from a task's first row to the commit of its batch. The broker's transaction.max.timeout.ms "
        "bounds it. After a crash without a restart readers wait this long.", WRITE,
    ),
    Option(
        "kafka.compression.type", _one_of("none", "gzip", "snappy", "lz4", "zstd"), "lz4", "Codec of written batches.",
        WRITE,
    ),
    Option("kafka.batch.size", _size, 512 << 10, "Size of a written batch before compression.", WRITE),
    Option(
        "kafka.acks", _one_of("all", "-1", "1", "0"), "all",
        "Accepted without effect: all in-sync replicas have a row before it counts as written.", WRITE,
    ),
    Option("checkpointLocation", _text, None, "Spark's own.", BOTH),
    Option("queryName", _text, None, "Spark's own.", BOTH),
)  # fmt: skip

_SECURITY: Final = ("kafka.security.", "kafka.ssl.", "kafka.sasl.", "kafka.enable.ssl.", "kafka.https.ca.location")

_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}

_REFUSED: Final = {
    "kafka.auto.offset.reset": "startingOffsets says where a query starts",
    "kafka.key.deserializer": "keys are bytes; decode them in the query",
    "kafka.value.deserializer": "values are bytes, or set value.format",
    "kafka.key.serializer": "the column key is bytes or text",
    "kafka.value.serializer": "the column value is bytes or text",
    "kafka.enable.auto.commit": "offsets are in Spark's checkpoint",
    "kafka.interceptor.classes": "there is no Java client that could call them",
}
"""Those that the connector refuses, too."""

_ALIASES: Final = {"servers": "kafka.bootstrap.servers", "bootstrap": "kafka.bootstrap.servers"}


class Options(msgspec.Struct, frozen=True):
    """Options as values, with defaults for the others. ``given`` are the names that the query set, ``ignored`` those of
    a Kafka client that mean nothing here.
    """

    values: Mapping[str, Any]
    given: frozenset[str]
    ignored: tuple[str, ...] = ()
    security: Security = PLAIN
    registry: RegistryAccess | None = None
    """How the registry of ``schema.registry.url`` is reached."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def require(self, name: str) -> Any:
        """The value of an option without a default.

        Raises:
            Rejected: it is not set.
        """
        if self.values[name] is None:
            raise Rejected(f"option {name} is missing: {_BY_NAME[name.lower()].doc}")
        return self.values[name]

    def at_most_one(self, names: Iterable[str]) -> str | None:
        """The set option among these, if any.

        Raises:
            Rejected: several are set.
        """
        found = [name for name in names if name in self.given]
        if len(found) > 1:
            raise Rejected(f"options {' and '.join(found)} exclude each other: give one")
        return found[0] if found else None


def parse_options(raw: Mapping[str, str], use: str) -> Options:
    """Check and parse the options of a query.

    Args:
        raw: option names and texts as Spark gives them.
        use: ``READ`` or ``WRITE``.

    Raises:
        Rejected: an option is unknown, given twice, not for this use, or malformed. The message names it.
    """
    values: dict[str, Any] = {option.name: option.default for option in OPTIONS}
    given: set[str] = set()
    ignored: list[str] = []
    secured: dict[str, str] = {}
    registered: dict[str, str] = {}
    for name, text in raw.items():
        if is_registry_name(name.lower()) and name.lower() not in _BY_NAME:
            registered[name.lower()] = text
            continue
        if name.lower().startswith(_SECURITY):
            secured[name.lower().removeprefix("kafka.")] = text
            continue
        option = _find(name)
        if option is None or (use not in option.use and option.name.startswith("kafka.")):
            ignored.append(name)
            continue
        if use not in option.use:
            raise Rejected(f"option {option.name} is for {'writing' if use == READ else 'reading'} only")
        if option.name in given:
            raise Rejected(f"option {option.name} is given twice")
        try:
            values[option.name] = option.parse(text)
        except ValueError as error:
            raise Rejected(f"option {option.name} {error}, not {text!r}") from None
        given.add(option.name)
    security = _security(secured)
    if not (security.speaks_tls or security.login):
        ignored += [f"kafka.{name}" for name in secured if name != "security.protocol"]
    registry = _registry(values, registered, security)
    return Options(values, frozenset(given), tuple(sorted(ignored)), security, registry)


def _registry(values: Mapping[str, Any], properties: Mapping[str, str], security: Security) -> RegistryAccess | None:
    """How the registry of a query is reached; None without one."""
    url = values["schema.registry.url"]
    if url is None:
        if properties:
            raise Rejected(f"option {min(properties)} is for a schema registry: set schema.registry.url")
        return None
    try:
        return registry_access(url, properties, security, values["kafka.bootstrap.servers"] or "")
    except Rejected as error:
        raise Rejected(f"option {error.message}") from None


def _security(properties: Mapping[str, str]) -> Security:
    """TLS and login of a query; without a protocol the other properties mean nothing, as in any Kafka client."""
    protocol = properties.get("security.protocol", "")
    try:
        return read_security(properties if protocol else {})
    except Rejected as error:
        raise Rejected(f"option kafka.{error.message}") from None


def tell_ignored(options: Options) -> None:
    """One line of the log for the options that mean nothing here."""
    if options.ignored:
        _LOG.warning("ignored, because they mean nothing to this source: %s", ", ".join(options.ignored))


def _find(name: str) -> Option | None:
    """The option of a name; None for one of a Kafka client that means nothing here."""
    low = name.lower()
    option = _BY_NAME.get(_ALIASES.get(low, low))
    if option is not None:
        return option
    if low == "path":
        raise Rejected("a topic has no path: name it with the option subscribe, and call load() without arguments")
    if low == "provider":
        raise Rejected(
            "Spark keeps the options of a CREATE TABLE to itself when a Python source is read: "
            "use CREATE TEMPORARY VIEW … USING millstream OPTIONS (…)"
        )
    if low in _REFUSED:
        raise Rejected(f"option {name} is not supported: {_REFUSED[low]}")
    if low.startswith("kafka."):
        return None
    near = difflib.get_close_matches(low, [*_BY_NAME, *_ALIASES], 1)
    hint = f"; did you mean {_BY_NAME[_ALIASES.get(near[0], near[0])].name}?" if near else ""
    # Spark hands over all names in lower case; a known one is shown as it is documented.
    raise Rejected(f"option {name} is unknown{hint}")


def option_table() -> list[tuple[str, str, str, str]]:
    """Name, use, default and meaning of every option, for the documentation."""
    shown = [option for option in OPTIONS if option.doc != "Spark's own."]
    return [(o.name, o.use, "" if o.default is None else str(o.default), o.doc) for o in shown]

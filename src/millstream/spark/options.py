"""What a query may say, declared once: name, meaning, default, form.

Names are those of Spark's Kafka connector wherever it has the option, so that a job changes its format name and nothing
else; our own stand beside them. Spark hands options over without regard to case. An option that is not in the table is
refused with the nearest name that is, and so is one whose value has the wrong form: a misspelt ``failOnDataloss`` that
is ignored would be found out on the worst of days. Options that the connector needs and we do not (it joins consumer
groups, we read positions) are accepted where leaving them out changes nothing, and say so here.

``option_table`` is the documentation.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from millstream.errors import Rejected
from millstream.spark.wanted import BYTE_LIMIT, ROW_LIMIT

READ: Final = "read"
WRITE: Final = "write"
BOTH: Final = "read, write"


class Option(msgspec.Struct, frozen=True):
    """One option: how its text becomes a value, and what it is for. ``default`` is what a query gets that is silent."""

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
    if not value.strip().isdigit() or int(value) < 1:
        raise ValueError("must be a whole number above 0")
    return int(value)


def _millis(value: str) -> int:
    if not value.strip().lstrip("-").isdigit():
        raise ValueError("must be a time in ms since 1970")
    return int(value)


_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _size(value: str) -> int:
    digits = value.strip().lower().removesuffix("b").removesuffix("i")
    unit = digits[-1:] if digits[-1:] in ("k", "m", "g") else ""
    number = digits.removesuffix(unit).strip()
    if not number.isdigit() or int(number) < 1:
        raise ValueError("must be a size such as 128m or 1500000")
    return int(number) * _SIZES[unit]


_DURATIONS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "": 1}


def _duration(value: str) -> int:
    number = value.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = value.strip()[len(number) :].strip()
    if not number.isdigit() or unit not in _DURATIONS:
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
    return _per_partition(value)


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
    Option("kafka.bootstrap.servers", _text, None, "Brokers to begin with, as host:port, separated by commas.", BOTH),
    Option("subscribe", _names, None, "Topics to read, separated by commas."),
    Option("subscribePattern", _text, None, "A regular expression; every topic whose whole name matches is read."),
    Option("assign", _assignment, None, 'Partitions to read: {"orders": [0, 1]}.'),
    Option(
        "startingOffsets", _offsets, None,
        "Where a new query begins: earliest, latest or JSON per partition (-2 earliest, -1 latest). A batch begins at "
        "earliest, a stream at latest. A stream that goes on from a checkpoint, and partitions that appear later, do "
        "not look at it.",
    ),
    Option("startingTimestamp", _millis, None, "Begin every partition at the first record of this time (ms) or later."),
    Option("startingOffsetsByTimestamp", _per_partition, None, "The same per partition, as JSON."),
    Option(
        "startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error",
        "What to do with a partition that has no record so late: fail, or begin at its end.",
    ),
    Option("endingOffsets", _offsets, None, "Where a batch ends, exclusive: latest or JSON per partition."),
    Option("endingTimestamp", _millis, None, "End every partition of a batch before the first record of this time."),
    Option("endingOffsetsByTimestamp", _per_partition, None, "The same per partition, as JSON."),
    Option("maxOffsetsPerTrigger", _count, None, "Most offsets in a micro-batch, shared out by how much each has."),
    Option("maxBytesPerTrigger", _size, None, "Most bytes of log in a micro-batch, estimated from segment sizes."),
    Option("minOffsetsPerTrigger", _count, None, "Wait until there is this much to read."),
    Option("maxTriggerDelay", _duration, 900_000, "But no longer than this."),
    Option("minPartitions", _count, None, "At least as many Spark tasks, where there is enough to read."),
    Option("maxRecordsPerPartition", _count, None, "Most offsets in one Spark task."),
    Option(
        "failOnDataLoss", _boolean, True,
        "Fail when records that should be read are gone (deleted, topic created again). false: log it and go on with "
        "what there is.",
    ),
    Option("includeHeaders", _boolean, False, "Add the column headers."),
    Option("fetchOffset.numRetries", _count, 3, "Kept for jobs that set it; retries end with the request timeout."),
    Option("fetchOffset.retryIntervalMs", _duration, 10, "Kept for jobs that set it."),
    Option("kafkaConsumer.pollTimeoutMs", _duration, None, "Kept for jobs that set it; see kafka.request.timeout.ms."),
    Option("groupIdPrefix", _text, None, "Kept for jobs that set it: this source reads positions and joins no group."),
    Option("kafka.group.id", _text, None, "Kept for jobs that set it: this source reads positions and joins no group."),
    Option("kafka.client.id", _text, "millstream-spark", "What brokers see in their logs and metrics.", BOTH),
    Option("kafka.request.timeout.ms", _duration, 30_000, "How long to go on asking a broker that fails.", BOTH),
    Option("kafka.max.partition.fetch.bytes", _size, 4 << 20, "Most bytes in one fetch from a broker."),
    Option("kafka.fetch.max.bytes", _size, None, "The same; the smaller of the two holds."),
    Option(
        "kafka.isolation.level", _one_of("read_committed", "read_uncommitted"), "read_committed",
        "Whether records of transactions that are open or aborted are left out.",
    ),
    Option("kafka.security.protocol", _one_of("plaintext"), "plaintext", "Only PLAINTEXT so far.", BOTH),
    Option(
        "read.path", _one_of("auto", "segments", "broker"), "auto",
        "auto: sealed segment files directly where they can be opened, the rest from brokers. segments: fail when a "
        "sealed file cannot be opened. broker: everything from brokers.",
    ),
    Option("manifest.url", _text, None, "HTTP address of the broker, if it should not be asked for it."),
    Option(
        "filter.pushdown", _boolean, False,
        "Apply the query's filters on offset, timestamp, partition and topic while planning and reading. Only for a "
        "DataFrame that is used with one filter: Spark keeps the last one for its other uses. Needs "
        "spark.sql.python.filterPushdown.enabled.",
    ),
    Option("split.bytes", _size, 128 << 20, "How much log one Spark task is meant to read."),
    Option("batch.rows", _count, ROW_LIMIT, "Most rows in one Arrow batch."),
    Option("batch.bytes", _size, BYTE_LIMIT, "Most bytes in one Arrow batch, unless a single record is larger."),
    Option("stats.dir", _text, None, "Directory for counts of what was read from where (millstream.spark.read_stats)."),
    Option("topic", _text, None, "Topic to write to, unless a column of that name says.", WRITE),
    Option(
        "delivery", _one_of("at-least-once", "exactly-once"), None,
        "What is promised of rows that are written; must be given, and at-least-once is what there is.", WRITE,
    ),
    Option(
        "kafka.compression.type", _one_of("none", "gzip", "snappy", "lz4", "zstd"), "lz4", "Of written batches.", WRITE
    ),
    Option("kafka.batch.size", _size, 512 << 10, "Bytes of a written batch before compression.", WRITE),
    Option("kafka.acks", _one_of("all", "-1"), "all", "Only all: rows lost with a leader were not delivered.", WRITE),
    Option("checkpointLocation", _text, None, "Spark's own.", BOTH),
    Option("queryName", _text, None, "Spark's own.", BOTH),
)  # fmt: skip

_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}

_ALIASES: Final = {"servers": "kafka.bootstrap.servers", "bootstrap": "kafka.bootstrap.servers"}


class Options(msgspec.Struct, frozen=True):
    """Options as values, those that were not given with their defaults; ``given`` are the names that were."""

    values: Mapping[str, Any]
    given: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def require(self, name: str) -> Any:
        """The value of an option that has no default.

        Raises:
            Rejected: it was not given.
        """
        if self.values[name] is None:
            raise Rejected(f"option {name} is missing: {_BY_NAME[name.lower()].doc}")
        return self.values[name]

    def at_most_one(self, names: Iterable[str]) -> str | None:
        """The one of these options that was given, if any.

        Raises:
            Rejected: more than one was.
        """
        found = [name for name in names if name in self.given]
        if len(found) > 1:
            raise Rejected(f"options {' and '.join(found)} exclude each other: give one")
        return found[0] if found else None


def parse_options(raw: Mapping[str, str], use: str) -> Options:
    """Check and read what a query said.

    Args:
        raw: option names and texts as Spark gives them.
        use: ``READ`` or ``WRITE``.

    Raises:
        Rejected: an option is unknown, given twice, of no use here, or has a wrong value; the message names it.
    """
    values: dict[str, Any] = {option.name: option.default for option in OPTIONS}
    given: set[str] = set()
    for name, text in raw.items():
        option = _find(name)
        if use not in option.use:
            raise Rejected(f"option {option.name} is for {'writing' if use == READ else 'reading'} only")
        if option.name in given:
            raise Rejected(f"option {option.name} is given twice")
        try:
            values[option.name] = option.parse(text)
        except ValueError as error:
            raise Rejected(f"option {option.name} {error}, not {text!r}") from None
        given.add(option.name)
    return Options(values, frozenset(given))


def _find(name: str) -> Option:
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
    if low.startswith(("kafka.ssl.", "kafka.sasl.")):
        raise Rejected(f"option {name} is not supported: connections are in plain text so far")
    near = difflib.get_close_matches(low, [*_BY_NAME, *_ALIASES], 1)
    hint = f"; did you mean {_BY_NAME[_ALIASES.get(near[0], near[0])].name}?" if near else ""
    raise Rejected(f"option {name} is unknown{hint}")


def option_table() -> list[tuple[str, str, str, str]]:
    """Name, use, default and meaning of every option, for documentation."""
    shown = [option for option in OPTIONS if option.doc != "Spark's own."]
    return [(o.name, o.use, "" if o.default is None else str(o.default), o.doc) for o in shown]

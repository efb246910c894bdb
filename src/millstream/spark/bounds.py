"""The bounds of a query as values: topics, start and end. Pure; the options are already parsed."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from millstream.errors import Rejected
from millstream.spark.options import Options

TopicPartition = tuple[str, int]

EARLIEST: Final = -2
LATEST: Final = -1
"""As in the connector's JSON. A real offset is 0 or more."""


class Subscription(msgspec.Struct, frozen=True):
    """Topics by name, topics by pattern, or partitions of topics. Exactly one of them is set."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = {}


class Bound(msgspec.Struct, frozen=True):
    """The start or the end of a read.

    ``kind`` says whether ``everywhere`` and ``by_partition`` hold offsets (with ``EARLIEST`` and ``LATEST``) or times
    in ms. If ``everywhere`` is None, ``by_partition`` must name each partition.
    """

    kind: Literal["offset", "timestamp"]
    everywhere: int | None
    by_partition: Mapping[TopicPartition, int] = {}
    option: str = ""


def subscription(options: Options) -> Subscription:
    """The topics of a query.

    Raises:
        Rejected: not exactly one of the three options is given.
    """
    given = options.at_most_one(("subscribe", "subscribePattern", "assign"))
    if given is None:
        raise Rejected("no topics are named: set one of the options subscribe, subscribePattern or assign")
    if given == "subscribe":
        return Subscription(names=options["subscribe"])
    if given == "assign":
        return Subscription(names=tuple(options["assign"]), partitions=options["assign"])
    return Subscription(pattern=options["subscribePattern"])


def starting(options: Options, *, streaming: bool) -> Bound:
    """Start of a new query.

    Raises:
        Rejected: a batch starts at latest.
    """
    names = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    bound = _bound(options, names, LATEST if streaming else EARLIEST)
    if (
        not streaming
        and (bound.everywhere == LATEST or LATEST in bound.by_partition.values())
        and bound.kind == "offset"
    ):
        raise Rejected("option startingOffsets: a batch cannot start at latest, it would read nothing")
    return bound


def ending(options: Options, *, streaming: bool) -> Bound:
    """End of a batch, or the offsets at which a stream stops permanently.

    Raises:
        Rejected: the end is earliest, or a stream's end is not given as offsets per partition.
    """
    names = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if streaming and (given := options.at_most_one(names)) is not None and not isinstance(options[given], dict):
        raise Rejected(f"option {given} of a stream is JSON per partition; without it, it ends with its trigger")
    if streaming and "endingOffsetsByTimestamp" in options.given:
        raise Rejected("option endingOffsetsByTimestamp is for batch queries; a stream takes endingOffsets")
    bound = _bound(options, names, LATEST)
    if bound.kind == "offset" and (bound.everywhere == EARLIEST or EARLIEST in bound.by_partition.values()):
        raise Rejected("option endingOffsets: a batch cannot end at earliest, it would read nothing")
    return bound


def check_streaming(options: Options, *, streaming: bool) -> None:
    """Refuse options of streams in a batch query.

    Raises:
        Rejected: one of them is given.
    """
    if not streaming:
        for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if name in options.given:
                raise Rejected(f"option {name} is for streams; a batch has no triggers")


def _bound(options: Options, names: tuple[str, str, str], default: int) -> Bound:
    by_offset, by_time, by_times = names
    given = options.at_most_one(names)
    if given is None:
        return Bound("offset", default, option=by_offset)
    value = options[given]
    if given == by_time:
        return Bound("timestamp", value, option=given)
    if given == by_times:
        return Bound("timestamp", None, value, given)
    if isinstance(value, str):
        return Bound("offset", EARLIEST if value == "earliest" else LATEST, option=given)
    if any(offset < EARLIEST for offset in value.values()):
        raise Rejected(f"option {given}: an offset is 0 or more, -1 (latest) or -2 (earliest)")
    return Bound("offset", None, value, given)

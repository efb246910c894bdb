"""Records on which a query itself fails: found by halves, kept as dead letters.

In Spark ``CAST('x' AS INT)``, ``1 / 0`` and a number that overflows are errors, which end the job with no word of the
row. The driver then runs the query over halves of the batch until it has the records:

::

    job fails ─► a half of its records: fails? ─► a half of that … ─► one record, and Spark's reason
                        └ does not? Then the other half does

A half is an order in a file beside the reports of the tasks. The source's tasks read it: they give the records of these
offsets alone. At the end the order names the failing records, and the tasks keep them as dead letters. One record of a
batch of ``n`` costs about ``log2(n)`` jobs, so their number is bounded: a query that fails often is one to be mended.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.locations import Location
from millstream.spark.fitting import REASON_MAX, Fault

_JOBS: Final = 500
"""Jobs over parts of one batch."""
_ORDER: Final = "order"
_DATA_ERROR: Final = re.compile(r"SQLSTATE: (?:22\w{3}|P0001)")
"""SQL's data exceptions, and those of ``raise_error``."""
_REASON: Final = re.compile(r"(\[[A-Z_.0-9]+\] .+?)\s+SQLSTATE: ", re.DOTALL)


class Span(msgspec.Struct, frozen=True):
    """Records of a partition, from ``start`` up to, not including, ``end``."""

    topic: str
    partition: int
    start: int
    end: int


class Order(msgspec.Struct, frozen=True):
    """What tasks of a batch read: ``only`` these records, without dead letters and reports; None is all. Records in
    ``failing`` become dead letters; there are the offsets and the reasons, by topic and partition.
    """

    only: tuple[Span, ...] | None = None
    failing: dict[str, dict[int, dict[int, str]]] = {}

    def chosen(self, records: Any) -> Any:
        """Those of a batch of records that are to be read."""
        if self.only is None:
            return records
        topics, partitions, offsets = _places(records)
        kept = np.zeros(records.num_rows, dtype=bool)
        for span in self.only:
            within = (offsets >= span.start) & (offsets < span.end)
            kept |= within & (partitions == span.partition) & (topics == span.topic)
        return records.filter(pa.array(kept))

    def faults(self, records: Any) -> dict[int, Fault]:
        """The failing ones of a batch of records, by index."""
        if not self.failing:
            return {}
        places = zip(*(column.tolist() for column in _places(records)), strict=True)
        reasons = [self.failing.get(topic, {}).get(partition, {}).get(offset) for topic, partition, offset in places]
        return {index: Fault(reason) for index, reason in enumerate(reasons) if reason is not None}


def _places(records: Any) -> tuple[Any, Any, Any]:
    topics, partitions, offsets = (
        records.column(name).to_numpy(zero_copy_only=False) for name in ("topic", "partition", "offset")
    )
    return topics, partitions, offsets


def order_of(place: Location) -> Order:
    """The order for the tasks of a batch, whose reports are in ``place``."""
    try:
        return msgspec.json.decode(place.read(_ORDER), type=Order)
    except FileNotFoundError:
        return Order()


def give_order(place: Location, order: Order) -> None:
    """Let tasks that start from now on read so."""
    place.make()
    place.write(_ORDER, msgspec.json.encode(order))


def is_of_data(error: BaseException) -> bool:
    """Whether Spark says that a row's values are at fault."""
    return _DATA_ERROR.search(str(error)) is not None


def reason_of(error: BaseException) -> str:
    """Spark's sentence, without where in its code it is from."""
    found = _REASON.search(str(error))
    return (found[1] if found else str(error).strip().splitlines()[0])[:REASON_MAX]


def failure_of(query: Callable[[], Any]) -> str | None:
    """Run a query and throw its rows away: the reason for which it fails on their values; None if it does not. Raises
    what is no fault of the values. ``query`` gives the frame, and may fail on the values itself.
    """
    try:
        query().write.format("noop").mode("overwrite").save()
    except Exception as error:
        if not is_of_data(error):
            raise
        return reason_of(error)
    return None


def failing_records(spans: Sequence[Span], why: Callable[[Sequence[Span]], str | None]) -> dict[Span, str]:
    """The records that fail on their own, each as a span, with the reason.

    Args:
        spans: records that together fail.
        why: the reason for which the query fails on some of them; None if it does not.

    Raises:
        Rejected: there are too many, or none of them fails alone.
    """
    found: dict[Span, str] = {}
    jobs = 0

    def asked(part: Sequence[Span]) -> str | None:
        nonlocal jobs
        jobs += 1
        if jobs > _JOBS:
            raise Rejected(
                f"the query fails on {len(found)} records and more ({next(iter(found.values()), 'of one batch')}): "
                "write try_cast, try_divide and the like where records may be so"
            )
        return why(part)

    def search(part: Sequence[Span], *, fails: bool) -> bool:
        """Whether the part has such records; ``fails``: it is known to."""
        count = sum(span.end - span.start for span in part)
        reason = None if fails and count > 1 else asked(part)
        if count == 1 and reason is not None:
            found[part[0]] = reason
        if count <= 1 or (reason is None and not fails):
            return reason is not None
        first, second = _halves(part, count // 2)
        in_first = search(first, fails=False)
        return search(second, fails=not in_first) or in_first

    search([span for span in spans if span.start < span.end], fails=True)
    if not found:
        raise Rejected("the query fails on a batch, and on none of its records alone")
    return found


def _halves(spans: Sequence[Span], count: int) -> tuple[list[Span], list[Span]]:
    """The first so many records, and the others."""
    first: list[Span] = []
    second: list[Span] = []
    for span in spans:
        middle = min(span.end, span.start + count)
        count -= middle - span.start
        if middle > span.start:
            first.append(msgspec.structs.replace(span, end=middle))
        if middle < span.end:
            second.append(msgspec.structs.replace(span, start=middle))
    return first, second

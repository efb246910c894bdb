"""The records of partitions for ``millstream consume`` without a group.

It uses the project's own client: a consumer of librdkafka looks for the coordinator of its group even if it never
joins one, and a broker creates ``__consumer_offsets`` for that. If the broker stops, the command waits for it.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

from millstream.cli import identity
from millstream.cli.broker_watch import BrokerWatch
from millstream.cli.connect import admin_client, partition_numbers, reached
from millstream.cli.explained import explain_error
from millstream.cli.failure import WrongUsage
from millstream.cli.output import remark
from millstream.cli.positions import Anchor, parse_position, resolve
from millstream.errors import MillstreamError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.cli.records import Header, Message
    from millstream.wire.records import Record

_PAUSE_S = 0.2
"""Time between two attempts to find a leader, in s."""


class PartitionSource:
    """Reads partitions from a position on. Nothing of it is stored at the broker.

    ``_failed`` is a failure that the next ``read`` raises, after the records that came before it.
    """

    def __init__(
        self, topics: Sequence[str], start: str, only: Sequence[int], isolation: str, bootstrap: str, timeout_s: float
    ) -> None:
        self._what = f"topic '{topics[0]}'" if len(topics) == 1 else "topics"
        self._bootstrap = bootstrap
        self._watch = BrokerWatch(bootstrap)
        self._round: Iterator[tuple[tuple[str, int], Record]] | None = None
        self._failed: MillstreamError | None = None
        starts: dict[tuple[str, int], int] = {}
        for topic in topics:
            starts |= _starts(topic, start, only, bootstrap, timeout_s)

        from millstream.client import Cluster, record_reader  # takes a tenth of a second

        self._cluster = Cluster(
            reached(bootstrap), client_id="millstream-cli", timeout_s=timeout_s, security=identity.security()
        )
        self._reader = record_reader.RecordReader(self._cluster, starts, read_committed=isolation == "read_committed")

    def read(self, limit: int) -> Sequence[Message]:
        if self._failed is not None:
            raise explain_error(self._failed, self._what, self._bootstrap)
        records: list[FetchedMessage] = []
        try:
            if self._round is None:
                if self._reader.failure is not None and not self._found_again():
                    return ()
                self._round = self._reader.read_round()
            for place, record in islice(self._round, limit):
                records.append(FetchedMessage(*place, record))
        except MillstreamError as error:
            self._failed = error
        if len(records) < limit:
            self._round = None
        return records

    def printed(self, message: Message) -> None:
        """The broker stores nothing of this source."""

    def flushed(self) -> None:
        """The broker stores nothing of this source."""

    def reached_end(self) -> bool:
        return self._round is None and self._failed is None and self._reader.at_end >= self._reader.positions.keys()

    def close(self) -> None:
        self._reader.close()
        self._cluster.close()

    def _found_again(self) -> bool:
        """Whether a broker answers after a failure; reports a change."""
        time.sleep(_PAUSE_S)
        try:
            self._reader.refresh()
        except Unavailable:
            self._watch.report(there=False)
            return False
        self._watch.report(there=True)
        return True


class FetchedMessage:
    """A record, with the methods by which confluent-kafka shows one."""

    __slots__ = ("_partition", "_record", "_topic")

    def __init__(self, topic: str, partition: int, record: Record) -> None:
        self._topic = topic
        self._partition = partition
        self._record = record

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._record.offset

    def timestamp(self) -> tuple[int, int]:
        timestamp_ms = self._record.timestamp
        return int(timestamp_ms >= 0), timestamp_ms

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> Sequence[Header]:
        return self._record.headers


def _starts(
    topic: str, start: str, only: Sequence[int], bootstrap: str, timeout_s: float
) -> dict[tuple[str, int], int]:
    """Where to start in each partition: an offset, EARLIEST or LATEST."""
    position = parse_position(start, "--from")
    client = admin_client(bootstrap)
    known = partition_numbers(client, topic, bootstrap, timeout_s)
    missing = sorted(set(only) - set(known))
    if missing:
        raise WrongUsage(
            f"--partition: topic '{topic}' has no partition {missing[0]}, expected one of {_ranges(known)}"
        )
    chosen = [(topic, number) for number in (sorted(set(only)) if only else known)]
    if position.anchor in (Anchor.BEGINNING, Anchor.END):
        from millstream.client import EARLIEST, LATEST

        return dict.fromkeys(chosen, EARLIEST if position.anchor is Anchor.BEGINNING else LATEST)
    starts = resolve(client, chosen, position, bootstrap, timeout_s)
    if position.anchor is Anchor.OFFSET and all(offset < position.value for offset in starts.values()):
        remark(f"no partition of topic '{topic}' has offset {position.value} yet; reads from the ends")
    return starts


def _ranges(numbers: list[int]) -> str:
    return f"0 to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])

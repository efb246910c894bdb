"""One served API on one shard, as each of its requests sees it: its versions, and the latency of its responses."""

from typing import TYPE_CHECKING, Final

from millstream.kafka.served import SERVED, Served
from millstream.telemetry.metrics import BUCKETS
from millstream.wire.codec import response_header_version

if TYPE_CHECKING:
    from millstream.shard.context import Shard

_NEVER: Final = 1 << 15


class Api:
    """What the hot path needs of one API, bound."""

    __slots__ = (
        "cells",
        "count_at",
        "effect",
        "key",
        "max_version",
        "min_version",
        "name",
        "now_us",
        "sum_at",
        "tagged_header_from",
        "templates",
    )

    def __init__(self, shard: "Shard", row: Served) -> None:
        key = self.key = row.key
        self.name = row.name
        self.effect = row.effect
        self.min_version, self.max_version = row.versions
        self.tagged_header_from = next(
            (v for v in range(self.min_version, self.max_version + 1) if response_header_version(key, v) == 1), _NEVER
        )
        # APIs that are not announced to clients have no label of their own.
        label = self.name if key in SERVED else "Other"
        latency = shard.stats.histogram("kafka_request_latency", api=label)
        self.cells = latency.cells
        self.count_at = latency.base
        self.sum_at = latency.base + BUCKETS
        self.now_us = shard.reactor.now_us
        self.templates: dict[tuple[object, ...], tuple[bytes, int]] = {}
        """Encoded answers, with the positions of the fields that vary. Filled by the handler."""

    def answered(self, received_us: int) -> None:
        """Count an answer; every request comes here, so the histogram is written out."""
        took_us = self.now_us() - received_us
        bucket = took_us.bit_length()
        cells = self.cells
        cells[self.count_at + (bucket if bucket < BUCKETS else BUCKETS - 1)] += 1
        cells[self.sum_at] += took_us

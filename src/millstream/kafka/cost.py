"""The cost of one served API: latency of its responses, and whether its last request took long.

A request counts as costly by its size (``COSTLY_BYTES``) or because the last one of its API took long
(``COSTLY_NS``). Costly requests of all connections are handled in turn (``net.parking``).
"""

from collections.abc import Callable
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, Final

from millstream.kafka.served import FETCH, SERVED, Served
from millstream.telemetry.metrics import BUCKETS
from millstream.wire.codec import Decoder, response_header_version
from millstream.wire.codec import flexible_from as codec_flexible_from

if TYPE_CHECKING:
    from millstream.kafka.context import Node, RequestContext

_NEVER: Final = 1 << 15

COSTLY_BYTES: Final = 4096
"""Size in bytes above which a request other than Produce is costly: it names hundreds of items, at about 1 µs each."""

COSTLY_NS: Final = 500_000
"""A short request also counts as costly if the last one of its API used more CPU than this (ns)."""

Handle = Callable[["Node", "RequestContext", Any], None]


class Api:
    """One served API on one shard, with what the hot path needs bound."""

    __slots__ = (
        "cells",
        "costly",
        "count_at",
        "decoders",
        "effect",
        "flexible_from",
        "gathers",
        "handle",
        "key",
        "max_version",
        "min_version",
        "name",
        "now_us",
        "spent_ns",
        "sum_at",
        "tagged_header_from",
        "templates",
        "turn",
        "weightless",
    )

    def __init__(self, node: "Node", row: Served, handle: Handle) -> None:
        key = self.key = row.key
        self.name = row.name
        self.effect = row.effect
        self.gathers = row.gathers
        self.weightless = row.weightless
        self.min_version, self.max_version = row.versions
        self.flexible_from = codec_flexible_from(key)
        self.tagged_header_from = next(
            (v for v in range(self.min_version, self.max_version + 1) if response_header_version(key, v) == 1), _NEVER
        )
        self.costly = False
        """Whether the last request took long. Then the next ones are handled in turn with other costly requests."""
        self.turn = -1
        self.spent_ns = 0
        """What those that ask other shards took together in that turn of the loop: each leaves something to be held."""
        self.handle = handle if key <= FETCH else self._timed(handle)
        # APIs that are not announced to clients have no label of their own.
        label = self.name if key in SERVED else "Other"
        latency = node.shard.stats.histogram("kafka_request_latency", api=label)
        self.cells = latency.cells
        self.count_at = latency.base
        self.sum_at = latency.base + BUCKETS
        self.now_us = node.shard.reactor.now_us
        self.templates: dict[tuple[object, ...], tuple[bytes, int]] = {}
        """Encoded answers, with the positions of the fields that vary. Filled by the handler."""
        self.decoders: dict[int, Decoder] = {}

    def _timed(self, handle: Handle) -> Handle:
        """Call ``handle`` and note how long it takes."""

        def timed(node: "Node", ctx: "RequestContext", request: Any) -> None:
            began_ns = thread_time_ns()
            handle(node, ctx, request)
            if len(ctx.body) > COSTLY_BYTES:
                return
            turn = node.shard.reactor.turns
            if turn != self.turn or not self.gathers:
                self.turn = turn
                self.spent_ns = 0
            self.spent_ns += thread_time_ns() - began_ns
            self.costly = self.spent_ns > COSTLY_NS

        return timed

    def answered(self, received_us: int) -> None:
        """Count an answer; every request comes here, so the histogram is written out."""
        took_us = self.now_us() - received_us
        bucket = took_us.bit_length()
        cells = self.cells
        cells[self.count_at + (bucket if bucket < BUCKETS else BUCKETS - 1)] += 1
        cells[self.sum_at] += took_us

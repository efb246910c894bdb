"""Frames to handlers: the one table of the APIs that this broker serves.

A frame is a request header and a body. The header names an API and a version; the table says which handler serves it
and the codec decodes the body for that version. What is not in the table is not served and not advertised.

Bad input: a body that does not decode, an API that is not served, a version out of range: the connection is closed,
with one rate-limited log line, as a client that negotiated versions never sends such a thing. Two exceptions that
clients rely on: ApiVersions in a version we do not know is answered in version 0 with UNSUPPORTED_VERSION and the
versions of it that we do (KIP-511); Produce below version 3, which Kafka 4 advertises for librdkafka's sake
(KAFKA-18659), is answered with UNSUPPORTED_VERSION. A client id that is not UTF-8 is read with U+FFFD in the place of
what is wrong, as Kafka reads it. A handler that raises an ``AssertionError`` found a broken invariant: the shard stops.
Any other exception is a fault of ours: it is logged with its stack and costs that client its connection, nothing more.

Overload: a request that waits for its answer is weighed, as bytes and as the objects that they became, and counted
(``net.parking``); where those under way hold all they may, a further one of more than ``COSTLY_BYTES`` waits before it
is decoded. Produce is not counted: its records have the budgets of the arena.
"""

import importlib
import struct
from collections.abc import Callable
from time import thread_time_ns
from typing import Any, Final

from millstream.iobuf import IoBuf
from millstream.kafka.context import Node, RequestContext
from millstream.net.connection import Connection
from millstream.telemetry.log import RateLimit, log
from millstream.telemetry.metrics import BUCKETS
from millstream.wire.codec import API_VERSIONS, Decoder, api_name, request_decoder, response_header_version
from millstream.wire.codec import flexible_from as codec_flexible_from
from millstream.wire.codec import warm_up as codec_warm_up
from millstream.wire.decoding import OBJECT_BYTES_MAX, ROOM_LEFT
from millstream.wire.errors import ProtocolError
from millstream.wire.headers import skip_header_tags
from millstream.wire.produce_again import ProduceAgain
from millstream.wire.produce_chain import decode_produce_at

_HEADER: Final = struct.Struct(">hhih")
_unpack: Final = _HEADER.unpack_from
HEADER_BYTES: Final = _HEADER.size
_NEVER: Final = 1 << 15

PRODUCE: Final = 0
FETCH: Final = 1
API_VERSIONS_KEY: Final = 18
PUSH_EVENTS: Final = 15100

CLIENT_ID_KEPT: Final = 1024
"""Characters of a client id that are kept with its connection: thousands of them may each send 32 KiB."""

COSTLY_BYTES: Final = 4096
"""Requests other than Produce that are larger name hundreds of things, which costs hundreds of microseconds."""

COSTLY_NS: Final = 500_000
"""So do short ones whose handler took this long of the core the last time: one that lists all that there is."""

LINEAR_BYTES_MAX: Final = 16 << 20
"""Requests other than Produce are decoded from one piece of memory; none of them but PushEvents is larger than this."""

SMALL_BYTES: Final = 4 << 10
"""Requests, as decoded, that need not be counted while they wait: a connection may have 256 of them under way."""

Handle = Callable[[Node, RequestContext, Any, Callable[[Any], None]], None]

SERVED: Final[dict[int, str]] = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    8: "offset_commit",
    9: "offset_fetch",
    10: "find_coordinator",
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    15: "describe_groups",
    16: "list_groups",
    18: "api_versions",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    23: "offset_for_leader_epoch",
    24: "add_partitions_to_txn",
    25: "add_offsets_to_txn",
    26: "end_txn",
    27: "write_txn_markers",
    28: "txn_offset_commit",
    29: "describe_acls",
    30: "create_acls",
    31: "delete_acls",
    32: "describe_configs",
    33: "alter_configs",
    34: "alter_replica_log_dirs",
    35: "describe_log_dirs",
    37: "create_partitions",
    43: "elect_leaders",
    42: "delete_groups",
    44: "incremental_alter_configs",
    47: "offset_delete",
    45: "alter_partition_reassignments",
    46: "list_partition_reassignments",
    48: "describe_client_quotas",
    55: "describe_quorum",
    60: "describe_cluster",
    68: "consumer_group_heartbeat",
    69: "consumer_group_describe",
    61: "describe_producers",
    65: "describe_transactions",
    66: "list_transactions",
    71: "get_telemetry_subscriptions",
    72: "push_telemetry",
    74: "list_config_resources",
    75: "describe_topic_partitions",
    15100: "push_events",
    15101: "feed_events",
    15102: "fetch_event_data",
    15103: "acknowledge_events",
    15104: "events_metadata",
}
"""API key → handler file."""

_KEYS: Final = {file: key for key, file in SERVED.items()}

READING: Final = frozenset(
    _KEYS[file]
    for file in (
        "fetch",
        "list_offsets",
        "offset_fetch",
        "offset_for_leader_epoch",
        "list_groups",
        "describe_groups",
        "consumer_group_describe",
        "describe_log_dirs",
        "describe_producers",
        "describe_transactions",
        "list_transactions",
    )
)
"""These ask other shards, and hold what they got until all have answered, however short they are."""

EVERYDAY: Final = tuple(
    _KEYS[file]
    for file in (
        "api_versions",
        "metadata",
        "produce",
        "init_producer_id",
        "list_offsets",
        "fetch",
        "find_coordinator",
        "join_group",
        "sync_group",
        "heartbeat",
        "leave_group",
        "consumer_group_heartbeat",
        "offset_fetch",
        "offset_commit",
    )
)
"""What producers and consumers send; a codec of the others takes its millisecond when one is asked for."""

OF_GROUPS: Final = frozenset({_KEYS["join_group"], _KEYS["sync_group"]})
"""They wait for other clients, and hold nothing: their group has taken what it keeps."""


def advertised_versions() -> dict[int, tuple[int, int]]:
    """What ApiVersions answers: served APIs with their version ranges."""
    versions = {key: API_VERSIONS[key] for key in SERVED}
    versions[PRODUCE] = (0, versions[PRODUCE][1])
    return versions


def warm_up() -> None:
    """Import every handler and compile the newest codecs of `EVERYDAY`: once, before the shards are forked."""
    for file in SERVED.values():
        importlib.import_module(f"millstream.kafka.handlers.{file}")
    codec_warm_up((key, API_VERSIONS[key][1]) for key in EVERYDAY)


class Api:
    """One served API on one shard, with what the hot path needs bound."""

    __slots__ = (
        "decoders",
        "cells",
        "costly",
        "count_at",
        "flexible_from",
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
    )

    def __init__(self, node: Node, key: int, handle: Handle) -> None:
        self.key = key
        self.name = api_name(key)
        self.min_version, self.max_version = API_VERSIONS[key]
        self.flexible_from = codec_flexible_from(key)
        self.tagged_header_from = next(
            (v for v in range(self.min_version, self.max_version + 1) if response_header_version(key, v) == 1), _NEVER
        )
        self.costly = False
        """The last request took long: the next ones are handled in turn with all that ask for much."""
        self.turn = -1
        self.spent_ns = 0
        """What those that ask other shards took together in that turn of the loop: each leaves something to be held."""
        self.handle = handle if key <= FETCH else self._timed(handle)
        latency = node.shard.stats.histogram("kafka_request_latency", api=self.name)
        self.cells = latency.cells
        self.count_at = latency.base
        self.sum_at = latency.base + BUCKETS
        self.now_us = node.shard.reactor.now_us
        self.templates: dict[tuple[object, ...], tuple[bytes, int]] = {}
        """Encoded answers with the place of what varies; the handler's to fill."""
        self.decoders: dict[int, Decoder] = {}

    def _timed(self, handle: Handle) -> Handle:
        """``handle``, and how long it takes is remembered."""

        def timed(node: Node, ctx: RequestContext, request: Any, respond: Callable[[Any], None]) -> None:
            began_ns = thread_time_ns()
            handle(node, ctx, request, respond)
            if len(ctx.body) > COSTLY_BYTES:
                return
            turn = node.shard.reactor.turns
            if turn != self.turn or self.key not in READING:
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


class Dispatcher:
    """The table, bound to one shard's node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.apis: dict[int, Api] = {}
        self._faults = RateLimit(per_minute=6)
        for key, file in SERVED.items():
            module = importlib.import_module(f"millstream.kafka.handlers.{file}")
            self.apis[key] = Api(node, key, module.handle)

    def on_frame(  # noqa: C901 - one frame, one straight line
        self, connection: Connection, frame: memoryview, chain: IoBuf | None = None
    ) -> bool:
        """Produce 2/8, Fetch 2/8. Read the header, decode the body, call the API's handler.

        True: nothing was done, as this costs much and others wait their turn; hand the frame over again.
        """
        try:
            end = len(frame)
            if end < HEADER_BYTES:
                raise ProtocolError("the request header is cut short")
            api_key, version, correlation_id, id_size = _unpack(frame)
            api = self.apis.get(api_key)
            if api is None:
                raise ProtocolError(f"API {api_key} is not served")
            position = HEADER_BYTES + max(id_size, 0)
            if id_size >= 0 and frame[HEADER_BYTES:position] != connection.client_id_bytes:
                _new_client_id(connection, frame[HEADER_BYTES:position], id_size)
            if version >= api.flexible_from:
                if position >= end:
                    raise ProtocolError("the request header is cut short")
                if frame[position]:
                    position = skip_header_tags(frame, position)
                else:
                    position += 1
            context = RequestContext(connection, api, version, correlation_id, frame, position)
            if not api.min_version <= version <= api.max_version:
                self._unserved_version(context, version)
                return False
            if chain is None:
                decode = api.decoders.get(version)
                if decode is None:
                    decode = api.decoders[version] = request_decoder(api_key, version)
                if api_key == PRODUCE:
                    again = connection.again
                    if again is None:
                        again = connection.again = ProduceAgain()
                    request = again.decode(decode, frame, position, end, version)
                else:
                    if end > COSTLY_BYTES or api.costly:
                        if connection.intake.must_wait(large=end > COSTLY_BYTES):
                            return True
                        context.hold()
                    request = decode(frame, position, end)
                    if context.holds and api_key in READING:
                        context.count()
            else:
                request = decode_produce_at(chain, position, version)
        except (ProtocolError, UnicodeDecodeError) as error:
            connection.intake.refuse(connection, f"sent what is no request: {error}")
            return False
        connection.exchanges.append(context)
        try:
            api.handle(self.node, context, request, context.respond)
            if not context.done and api_key != PRODUCE:
                weight = end + OBJECT_BYTES_MAX - ROOM_LEFT[0]
                if weight > SMALL_BYTES:
                    context.forget()
                    connection.intake.parking.park(context, 0 if api_key in OF_GROUPS else weight)
                elif api_key in OF_GROUPS:
                    context.let_go()
        except AssertionError:
            raise
        except Exception:  # noqa: BLE001 - a fault of one handler must not cost the other clients their broker
            if self._faults.allows():
                who, more = f"{connection.host}:{connection.port}", self._faults.left_out()
                log.exception("%s version %d of %s failed; its connection is closed%s", api.name, version, who, more)
            connection.close()
            context.rest()
        return False

    def on_chain(self, connection: Connection, chain: IoBuf) -> bool:
        """Like ``on_frame``, for a frame that was received into a chain of fragments."""
        views = chain.views()
        if len(views) == 1:
            return self.on_frame(connection, views[0])
        if int.from_bytes(views[0][:2], "big") == PRODUCE:
            return self.on_frame(connection, views[0], chain)
        if len(chain) <= LINEAR_BYTES_MAX or int.from_bytes(views[0][:2], "big") == PUSH_EVENTS:
            return self.on_frame(connection, memoryview(b"".join(views)))
        connection.intake.refuse(connection, f"sent a request of {len(chain)} bytes that is not a Produce")
        return False

    def _unserved_version(self, context: RequestContext, version: int) -> None:
        """A version we do not serve: two APIs are answered, the others close."""
        connection = context.connection
        if context.api_key == API_VERSIONS_KEY:
            from millstream.kafka.handlers import api_versions

            connection.exchanges.append(context)
            api_versions.answer_unsupported(context)
        elif context.api_key == PRODUCE and 0 <= version < context.api.min_version:
            from millstream.kafka.handlers import produce_legacy

            connection.exchanges.append(context)
            produce_legacy.answer(context)
        else:
            raise ProtocolError(f"{context.api.name} version {version} is not served")


def _new_client_id(connection: Connection, raw: memoryview, size: int) -> None:
    """Remember the client id of a connection; it is the same in nearly every request."""
    if len(raw) != size:
        raise ProtocolError("the client id is cut short")
    client_id = str(raw, "utf-8", "replace")
    if size > CLIENT_ID_KEPT:
        client_id, raw = client_id[:CLIENT_ID_KEPT], raw[:0]
    connection.client_id_bytes = memoryview(bytes(raw))
    connection.client_id = client_id

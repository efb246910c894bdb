"""Frames to handlers.

A frame is a request header and a body. The header names an API and a version; the table of ``kafka.served`` says which
handler serves it, and the codec decodes the body for that version.

Bad input: a body that does not decode, an API that is not served, a version out of range: the connection is closed,
with one rate-limited log line, as a client that negotiated versions never sends such a thing. Two exceptions that
clients rely on: ApiVersions in a version we do not know is answered in version 0 with UNSUPPORTED_VERSION and the
versions of it that we do (KIP-511); Produce below version 3, which Kafka 4 advertises for librdkafka's sake
(KAFKA-18659), is answered with UNSUPPORTED_VERSION. A client id that is not UTF-8 is read with U+FFFD in the place of
what is wrong, as Kafka reads it. A handler that raises an ``AssertionError`` found a broken invariant: the shard stops.
Any other exception is a fault of ours: it is logged with its stack and costs that client its connection, nothing more.

Order: **a request sees the effect of every earlier request of its connection**, as in Kafka, which starts the next one
when the response to the one before is sent. Here a request starts when the earlier ones with an effect
(``served.Served.effect``) are answered; until then its connection is not read. Further requests of the same API start
at once, because they take effect in their order: that is how a producer has many batches in progress. After a request
that only reads the next one starts at once, too, unless memory or CPU are short; in Kafka it waits for the response. A
Produce with acks=0 is answered by nothing; what it appended is visible when it is durable.

Overload: a request that waits for its answer is weighed, as bytes and as the objects that they became, and counted
(``net.parking``); where those in progress hold all they may, a further one of more than ``COSTLY_BYTES`` waits before
it is decoded. Produce is not counted: its records have the budgets of the arena.
"""

import importlib
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from millstream.core.controller.features import has_share_groups, has_streams_groups
from millstream.iobuf import IoBuf
from millstream.kafka.access import Access
from millstream.kafka.audit import CHANGES, Audit, audited, note_refusals, noting
from millstream.kafka.authorize.table import guard_of
from millstream.kafka.context import GuardedContext, Node, RequestContext
from millstream.kafka.cost import COSTLY_BYTES, Handle, HandledApi
from millstream.kafka.logins.gate import Gate
from millstream.kafka.rights import Asker, Guard
from millstream.kafka.served import (
    API_VERSIONS_KEY,
    FETCH,
    PRODUCE,
    PUSH_EVENTS,
    SERVED,
    SHARE_GROUPS,
    STREAMS_GROUPS,
    handler_module,
)
from millstream.model.cluster import FeatureLevel
from millstream.net.connection import Connection
from millstream.net.responses import Request as InProgress
from millstream.telemetry.log import RateLimit, log
from millstream.wire.codec import request_decoder
from millstream.wire.decoding import OBJECT_BYTES_MAX, ROOM_LEFT
from millstream.wire.errors import ProtocolError
from millstream.wire.headers import skip_header_tags
from millstream.wire.produce_again import ProduceAgain
from millstream.wire.produce_chain import decode_produce_at
from millstream.wire.schema import Request, Response

_HEADER: Final = struct.Struct(">hhih")
_unpack: Final = _HEADER.unpack_from
HEADER_BYTES: Final = _HEADER.size

CLIENT_ID_KEPT: Final = 1024
"""Maximum length of a client id that is kept with its connection, in characters. A client may send 32 KiB."""

LINEAR_BYTES_MAX: Final = 16 << 20
"""Maximum size of a request that is decoded from one piece of memory. Only Produce and PushEvents may be larger."""

SMALL_BYTES: Final = 4 << 10
"""Size of a decoded request, in bytes, up to which it is not counted while it waits."""


class Dispatcher:
    """The table, bound to one shard's node."""

    def __init__(self, node: Node, audit: Audit | None = None) -> None:
        self.node = node
        self.apis: dict[int, HandledApi] = {}
        self._faults = RateLimit(per_minute=6)
        self.context: type[RequestContext] = RequestContext if node.access is None else GuardedContext
        """The class of contexts; another one while quotas exist (``kafka.quotas``)."""
        for key, row in SERVED.items():
            handle: Handle = importlib.import_module(handler_module(row)).handle
            if key in SHARE_GROUPS:
                handle = _where_known(handle, has_share_groups)
            elif key in STREAMS_GROUPS:
                handle = _where_known(handle, has_streams_groups)
            if audit is not None and key in CHANGES:
                handle = audited(audit, key, handle)
            if node.access is not None:
                handle = _guarded(node.access, guard_of(key), handle)
            self.apis[key] = HandledApi(node, row, handle)

    def on_frame(  # noqa: C901 - one frame, one straight line
        self, connection: Connection, frame: memoryview, chain: IoBuf | None = None
    ) -> bool:
        """Produce 2/8, Fetch 2/8. Read the header, decode the body, call the API's handler.

        True: nothing was done, because the request waits for another one or for its turn; hand the frame over again.
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
            if id_size >= 0 and frame[HEADER_BYTES:position] != connection.client.id_bytes:
                _new_client_id(connection, frame[HEADER_BYTES:position], id_size)
            if version >= api.flexible_from:
                if position >= end:
                    raise ProtocolError("the request header is cut short")
                position = skip_header_tags(frame, position) if frame[position] else position + 1
            exchanges = connection.responses.exchanges
            if exchanges and _must_follow(exchanges, api):
                return True
            context = self.context(connection, api, version, correlation_id, frame, position)
            if not api.min_version <= version <= api.max_version:
                self._unserved_version(context, version)
                return False
            if chain is None:
                decode = api.decoders.get(version)
                if decode is None:
                    decode = api.decoders[version] = request_decoder(api_key, version)
                if api_key == PRODUCE:
                    again = connection.produces
                    if again is None:
                        again = connection.produces = ProduceAgain()
                    request = again.decode(decode, frame, position, end, version)
                else:
                    if end > COSTLY_BYTES or api.costly:
                        if connection.intake.turns.must_wait(large=end > COSTLY_BYTES):
                            return True
                        context.hold()
                    request = decode(frame, position, end)
                    if context.holds and api.gathers:
                        context.count()
            else:
                request = decode_produce_at(chain, position, version)
        except (ProtocolError, UnicodeDecodeError) as error:
            connection.intake.refuse(connection, f"sent what is no request: {error}")
            return False
        exchanges.append(context)
        try:
            api.handle(self.node, context, request)
            if not context.done and api_key != PRODUCE:
                weight = end + OBJECT_BYTES_MAX - ROOM_LEFT[0]
                if weight > SMALL_BYTES:
                    context.forget()
                    connection.intake.parking.park(context, 0 if api.weightless else weight)
                elif api.weightless:
                    context.unhold()
        except AssertionError:
            raise
        except Exception:  # noqa: BLE001 - a fault of one handler must not cost the other clients their broker
            if self._faults.allows():
                who, more = connection.client, self._faults.left_out()
                log.exception("%s version %d of %s failed; its connection is closed%s", api.name, version, who, more)
            connection.close()
            context.rest()
        return False

    def on_gated_frame(self, connection: Connection, frame: memoryview, chain: IoBuf | None = None) -> bool:
        """Like ``on_frame``, where some listener demands a login: what a gate does not admit ends here."""
        gate = connection.client.gate
        if not isinstance(gate, Gate) or gate.admits(frame):
            return self.on_frame(connection, frame, chain)
        if gate.is_interrupted:
            api_key, version, correlation_id, _ = _unpack(frame)
            api = self.apis.get(api_key)
            if api is None or not api.min_version <= version <= api.max_version:
                connection.close()
                return False
            context = self.context(connection, api, version, correlation_id, frame, HEADER_BYTES)
            connection.responses.exchanges.append(context)
            gate.end_interrupted(context)
        return False

    def on_gated_chain(self, connection: Connection, chain: IoBuf) -> bool:
        """Like ``on_chain``, where some listener demands a login."""
        gate = connection.client.gate
        if not isinstance(gate, Gate):
            return self.on_chain(connection, chain)
        views = chain.views()
        if gate.is_open:
            return self.on_chain(connection, chain) if gate.admits(views[0]) else False
        return self.on_gated_frame(connection, views[0] if len(views) == 1 else memoryview(b"".join(views)))

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
        """Handle an unsupported version: ApiVersions and Produce are answered, others close the connection."""
        connection = context.connection
        if context.api_key == API_VERSIONS_KEY:
            from millstream.kafka.handlers.admin import api_versions

            connection.responses.exchanges.append(context)
            api_versions.answer_unsupported(context)
        elif context.api_key == PRODUCE and 0 <= version < context.api.min_version:
            from millstream.kafka.handlers.data import produce_legacy

            connection.responses.exchanges.append(context)
            produce_legacy.answer(context)
        else:
            raise ProtocolError(f"{context.api.name} version {version} is not served")


def _where_known(handle: Handle, has: Callable[[FeatureLevel], bool]) -> Handle:
    """``handle`` of an API that is served when all brokers of the cluster know it. Before that it is not announced, and
    who asks all the same is answered as by a broker that does not have it.
    """

    def checked(node: Node, ctx: RequestContext, request: Request) -> None:
        if has(node.metadata.state.feature_level):
            handle(node, ctx, request)
        else:
            ctx.connection.intake.refuse(ctx.connection, f"asked for {ctx.api.name}, which not every broker knows yet")

    return checked


def _guarded(access: Access, guard: Guard, handle: Handle) -> Handle:
    """``handle`` behind the guard of its API."""

    def guarded(node: Node, ctx: RequestContext, request: Request) -> None:
        assert isinstance(ctx, GuardedContext)
        ctx.asker = Asker(access, ctx.connection, node.metadata, node.settings, ctx.api_version)
        outcome = guard(ctx.asker, request)
        audit = access.audit
        if isinstance(outcome, Response):
            if audit is not None:
                note_refusals(audit, ctx, outcome)
            ctx.respond(outcome)
            return
        ctx.merge = outcome.merge
        if audit is not None and outcome.merge is not None and ctx.api_key > FETCH:
            ctx.merge = noting(audit, ctx, outcome.merge)
        handle(node, ctx, outcome.request)

    return guarded


def _must_follow(exchanges: deque[InProgress], api: HandledApi) -> bool:
    """Whether a request waits for earlier ones of another API, whose effect it has to see. Then the connection is not
    read until the last one of these is answered. They are the newest of the connection: nothing else started after
    them.
    """
    last = exchanges[-1]
    if not isinstance(last, RequestContext) or last.api is api or not last.api.effect:
        return False
    for exchange in reversed(exchanges):
        if not isinstance(exchange, RequestContext) or exchange.api is not last.api:
            return False
        if not exchange.done:
            exchange.hold()
            return True
    return False


def _new_client_id(connection: Connection, raw: memoryview, size: int) -> None:
    """Remember the client id of a connection; it is the same in nearly every request."""
    if len(raw) != size:
        raise ProtocolError("the client id is cut short")
    client_id = str(raw, "utf-8", "replace")
    if size > CLIENT_ID_KEPT:
        client_id, raw = client_id[:CLIENT_ID_KEPT], raw[:0]
    connection.client.id_bytes = memoryview(bytes(raw))
    connection.client.id = client_id

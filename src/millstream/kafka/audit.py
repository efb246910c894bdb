"""The audit of one shard: who logged in, what was refused, who changed what.

::

    logins ─┐
    changes ├─► queue of QUEUE_MAX ──batches──► supervisor ──► DATA/audit (``app.audit_file``)
    refused ┘  (summed over a minute)

A record is one line of JSON. A change is recorded when it is answered, with the names of what it changes and the errors
that its client gets; a refusal by rights with the API, the error and the name. Values of configurations, credentials
and record data are never in a record.

Overload: the supervisor takes one batch at a time. While ``QUEUE_MAX`` records wait, further ones are counted, and a
record says how many are lost; with ``audit.on.overflow=refuse`` changes are refused before they are made, so that none
is lost. Crash: records that wait here are lost with the shard, and so is the broker.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from millstream.iobuf.outbox import Holder
from millstream.kafka.access import Refusals, controls_access
from millstream.kafka.context import RequestContext
from millstream.model.access import Operation, PatternType, Permission, ResourceType
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiKey
from millstream.net.shared import Shared
from millstream.wire.codec import decode_response
from millstream.wire.schema import Int8, Response

if TYPE_CHECKING:
    from millstream.config.settings import Settings
    from millstream.kafka.context import Node
    from millstream.kafka.cost import Handle
    from millstream.kafka.rights import Merge
    from millstream.shard.context import Shard
    from millstream.wire.schema import Request

QUEUE_MAX: Final = 4_096
BATCH_MAX: Final = 200
SUM_US: Final = 60_000_000
DECODED_MAX: Final = 256 << 10
"""Size of an encoded answer up to which it is decoded for its errors. A longer one would delay other clients."""
_SUMS_MAX: Final = 1_000
_NAMES_MAX: Final = 20
_RETRY_US: Final = 1_000_000
_REFUSALS: Final = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
_encode: Final = msgspec.json.Encoder().encode

REFUSE: Final = "refuse"

Send = Callable[[list[bytes], Callable[[bool], None]], None]
"""Hands lines to the supervisor; then says whether it has taken them."""


class Audit:
    """The records of one shard. Lifecycle: made with the shard's edge; ``start`` when the supervisor is reached."""

    def __init__(self, shard: "Shard", *, refuses: bool) -> None:
        """``refuses``: changes are refused while the queue is full."""
        self._shard = shard
        self._refuses = refuses
        self._queue: deque[bytes] = deque()
        self._send: Send | None = None
        self._sending = 0
        self._lost = 0
        self._sums: dict[tuple[str, str, str, str, str], int] = {}
        self._summing = False
        self._records = shard.stats.counter("audit_records")
        self._lost_records = shard.stats.counter("audit_lost_records")

    def start(self, send: Send) -> None:
        self._send = send
        self._push()

    @property
    def refuses_changes(self) -> bool:
        """Whether a change would not be recorded and must not be made."""
        return self._refuses and len(self._queue) >= QUEUE_MAX

    def login(self, principal: str, host: str, listener: str, why: str = "") -> None:
        """A client has logged in; with ``why`` it has not."""
        facts = {"outcome": "failed", "why": why} if why else {"outcome": "succeeded"}
        self._note("login", principal, host, listener=listener, **facts)

    def refused(self, principal: str, host: str, api: str, error: str, name: str) -> None:
        """Rights are missing; equal refusals of a minute become one record."""
        key = (principal, host, api, error, name)
        if key not in self._sums and len(self._sums) >= _SUMS_MAX:
            key = ("", "", "", "", "")
        self._sums[key] = self._sums.get(key, 0) + 1
        if not self._summing:
            self._summing = True
            self._shard.reactor.call_later(SUM_US, self.end_sums)

    def changed(self, principal: str, host: str, api: str, what: list[str], errors: list[str]) -> None:
        """A client has asked for a change; ``errors`` are those that it is answered."""
        named = what[:_NAMES_MAX] + ([f"and {len(what) - _NAMES_MAX} more"] if len(what) > _NAMES_MAX else [])
        self._note("change", principal, host, api=api, what=named, errors=errors)

    def end_sums(self) -> None:
        """Record the refusals that were summed."""
        self._summing = False
        sums, self._sums = self._sums, {}
        for (principal, host, api, error, name), count in sums.items():
            if api:
                self._note("refused", principal, host, api=api, error=error, name=name, count=count)
            else:
                self._note("refused", "", "", why="others, too many to name", count=count)

    def _note(self, kind: str, principal: str, host: str, **facts: Any) -> None:
        if len(self._queue) >= QUEUE_MAX:
            self._lost += 1
            self._lost_records.inc()
            return
        if self._lost and len(self._queue) < QUEUE_MAX - 1:
            lost, self._lost = self._lost, 0
            self._note("lost", "", "", count=lost)
        head = {"time": time_text(), "kind": kind, "principal": principal, "host": host}
        self._queue.append(_encode(head | facts))
        self._records.inc()
        self._push()

    def _push(self) -> None:
        if self._send is None or self._sending or not self._queue:
            return
        batch = [self._queue[index] for index in range(min(BATCH_MAX, len(self._queue)))]
        self._sending = len(batch)
        self._send(batch, self._taken)

    def _taken(self, taken: bool) -> None:
        count, self._sending = self._sending, 0
        if taken:
            for _ in range(count):
                self._queue.popleft()
            self._push()
        else:
            self._shard.reactor.call_later(_RETRY_US, self._push)


def keeps_audit(settings: "Settings") -> bool:
    """Whether this broker keeps an audit: by itself, where it controls access."""
    return settings.audit_log == "on" or (settings.audit_log == "auto" and controls_access(settings))


def time_text() -> str:
    """The time of a record: for people, never for a decision."""
    now_ns = time.time_ns()
    seconds, millis = now_ns // 10**9, now_ns // 10**6 % 1000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{millis:03d}Z"


# Changes


def _named(items: Iterable[Any] | None, field: str = "name") -> list[str]:
    return [str(getattr(item, field)) for item in items or ()]


def _configs(request: Any) -> list[str]:
    """Resources and the names of their properties, never a value."""
    return [
        f"{resource.resource_name or '<default>'}: {', '.join(one.name for one in resource.configs)}"
        for resource in request.resources
    ]


def _acl(one: Any) -> str:
    resource = f"{_word(ResourceType, one.resource_type)} {one.resource_name}"
    pattern = _word(PatternType, one.resource_pattern_type)
    permission, operation = _word(Permission, one.permission_type), _word(Operation, one.operation)
    return f"{permission} {one.principal} {operation} on {resource} ({pattern}) from {one.host}"


def _word(kind: Any, number: Int8) -> str:
    try:
        return str(kind(number).name).lower()
    except ValueError:
        return str(number)


def _quotas(request: Any) -> list[str]:
    return [
        ", ".join(f"{part.entity_type} {part.entity_name or '<default>'}" for part in entry.entity)
        + ": "
        + ", ".join(f"{op.key} removed" if op.remove else f"{op.key}={op.value:g}" for op in entry.ops)
        for entry in request.entries
    ]


CHANGES: Final[dict[int, Callable[[Any], list[str]]]] = {
    19: lambda request: _named(request.topics),
    20: lambda request: request.topic_names or [one.name or one.topic_id.hex() for one in request.topics],
    21: lambda request: _named(request.topics),
    27: lambda request: [
        f"{'commit' if one.transaction_result else 'abort'} of producer {one.producer_id} in {topic.name}"
        for one in request.markers
        for topic in one.topics
    ],
    30: lambda request: [_acl(one) for one in request.creations],
    31: lambda request: [f"{one.principal_filter} on {one.resource_name_filter}" for one in request.filters],
    33: _configs,
    34: lambda request: [topic.name for each in request.dirs for topic in each.topics],
    37: lambda request: [f"{topic.name}: {topic.count}" for topic in request.topics],
    42: lambda request: list(request.groups_names),
    43: lambda request: _named(request.topic_partitions, "topic"),
    44: _configs,
    45: lambda request: _named(request.topics),
    47: lambda request: [request.group_id],
    49: _quotas,
    51: lambda request: [*(f"{one.name} removed" for one in request.deletions), *_named(request.upsertions)],
    57: lambda request: [f"{one.feature}: {one.max_version_level}" for one in request.feature_updates],
    64: lambda request: [str(request.broker_id)],
    91: lambda request: [f"{request.group_id}: {topic.topic_name}" for topic in request.topics],
    92: lambda request: [f"{request.group_id}: {topic.topic_name}" for topic in request.topics],
    15200: lambda request: [type(request).__name__.removesuffix("Request")],
    15300: lambda request: [f"{request.topic_id.hex()}-{request.partition_index}"],
    15301: lambda request: [str(request.count)],
    15302: lambda request: [type(request).__name__.removesuffix("Request")],
    15303: lambda request: [one.user for one in request.verifiers],
}
"""APIs that change something, and the names of what a request changes."""


class AuditedContext:
    """A change's context: records it when it is answered, and is the handler's own context in everything else."""

    __slots__ = ("_audit", "_ctx", "_what")

    def __init__(self, audit: Audit, ctx: RequestContext, what: list[str]) -> None:
        self._audit = audit
        self._ctx = ctx
        self._what = what

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def respond(self, message: Response) -> None:
        self._record(message)
        self._ctx.respond(message)

    def respond_encoded(self, body: bytes | bytearray | memoryview) -> None:
        if len(body) <= DECODED_MAX:
            view = memoryview(bytes(body))
            self._record(decode_response(self._ctx.api_key, self._ctx.api_version, view, 0, len(view)))
        else:
            self._audit.changed(self._ctx.principal, self._ctx.host, self._ctx.api.name, self._what, ["NOT_DECODED"])
        self._ctx.respond_encoded(body)

    def respond_around(self, before: bytes | memoryview, shared: Shared, after: bytes | memoryview) -> None:
        self._ctx.respond_around(before, shared, after)

    def respond_vectored(self, message: Response, holder: Holder | None) -> None:
        self._record(message)
        self._ctx.respond_vectored(message, holder)

    def _record(self, message: Any) -> None:
        ctx = self._ctx
        errors = list(dict.fromkeys(ErrorCode(code).name for code, _ in errors_in(message) if code))
        self._audit.changed(ctx.principal, ctx.host, ctx.api.name, self._what, errors)


def audited(audit: Audit, key: ApiKey, handle: "Handle") -> "Handle":
    """``handle`` of an API that changes something, with a record of each change."""
    what = CHANGES[key]

    def record(node: "Node", ctx: RequestContext, request: "Request") -> None:
        if audit.refuses_changes:
            ctx.connection.intake.refuse(ctx.connection, "asked for a change that could not be recorded in the audit")
            return
        handle(node, cast("RequestContext", AuditedContext(audit, ctx, what(request))), request)

    return record


# Refusals

_NAME_FIELDS: Final = ("name", "topic", "topic_name", "resource_name", "group_id", "transactional_id")


def note_refusals(audit: Refusals, ctx: RequestContext, message: Response) -> None:
    """Record the errors of missing rights in a response."""
    found = dict.fromkeys((code, name) for code, name in errors_in(message) if code in _REFUSALS)
    for code, name in list(found)[:_NAMES_MAX]:
        audit.refused(ctx.principal, ctx.host, ctx.api.name, ErrorCode(code).name, name)


def noting(audit: Refusals, ctx: RequestContext, merge: "Merge") -> "Merge":
    """``merge``, with a record of the refusals that it adds."""

    def noted(response: Any) -> Response:
        merged = merge(response)
        note_refusals(audit, ctx, merged)
        return merged

    return noted


def errors_in(message: Any, name: str = "") -> Iterator[tuple[int, str]]:
    """The error codes of a response, each with the name of what it is about."""
    for field in _NAME_FIELDS:
        found = getattr(message, field, None)
        if isinstance(found, str) and found:
            name = found
            break
    code = getattr(message, "error_code", None)
    if isinstance(code, int):
        yield code, name
    for field in message.__struct_fields__:
        items = getattr(message, field)
        if isinstance(items, list):
            for item in cast("list[Any]", items):
                if isinstance(item, msgspec.Struct):
                    yield from errors_in(item, name)

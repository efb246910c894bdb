"""What the broker itself answers over HTTP; other rooms add their routes to the same router.

``ROUTES`` is the table: method, path, right, parameters, body, answer, and the sentence that says it. Requests are
decoded by it, ``GET /v1/openapi.json`` and the reference page are made of it. ``/healthz`` and ``/metrics`` are open to
everybody: a probe or a scraper logs in nowhere.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, Protocol

import msgspec

from millstream import __version__
from millstream.admin import bodies
from millstream.admin.as_caller import HasActing
from millstream.admin.backups import Backups
from millstream.admin.bundle import BUNDLE_ROUTES, GathersBundles
from millstream.admin.declared import Call, Declared
from millstream.admin.openapi import document
from millstream.admin.overview import Facts, Overview
from millstream.admin.page import POLICY, page
from millstream.admin.resources import RESOURCE_ROUTES
from millstream.admin.routing import HTML, HttpError, Request, Response, Right, Router, dump
from millstream.admin.topics import TOPIC_ROUTES
from millstream.core.controller.requests import AdminRequest
from millstream.errors import MillstreamError, Rejected
from millstream.model.access import Operation, ResourceType
from millstream.model.error_code import ErrorCode
from millstream.telemetry.metrics import StatsSlab

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE_ROWS_MAX = 200


class Broker(HasActing, GathersBundles, Protocol):
    """What the endpoints ask; the composition root answers. Called on the server's threads."""

    def metrics(self) -> bytes: ...

    def health(self) -> dict[str, Any]:
        """Facts of a broker that is well; raises ``MillstreamError`` with the reason otherwise."""
        ...

    def status(self) -> dict[str, Any]: ...

    def cluster(self) -> dict[str, Any]:
        """The state of the cluster as this broker sees it."""
        ...

    def change_cluster(self, request: AdminRequest) -> dict[str, Any]:
        """Raises MillstreamError for a request that was not carried out."""
        ...

    def replicas(self) -> dict[str, Any]:
        """What this broker knows of each of its Raft groups."""
        ...

    def lead_alone(self, order: bodies.LeadAlone) -> dict[str, Any]:
        """Unsafe recovery. Raises Rejected for an order that must not be carried out."""
        ...

    def repair_partition(self, asked: bodies.RepairAsked) -> dict[str, Any]:
        """Plan a repair of a partition that is not served, or do it."""
        ...

    def loggers(self) -> dict[str, Any]:
        """The loggers and their levels."""
        ...

    def set_logger(self, asked: bodies.LoggerLevel) -> dict[str, Any]:
        """Give a logger a level for a time, on all shards. Rejected if there is no such logger."""
        ...

    def certificates(self) -> dict[str, Any]:
        """The certificates of the listeners with TLS, and when they end."""
        ...

    def reload_certificates(self) -> dict[str, Any]:
        """Read the listeners' key material again."""
        ...

    def segments(self, topic: str) -> dict[str, Any]: ...

    def tiers(self, topic: str | None) -> dict[str, Any]:
        """How far tiered topics are archived."""
        ...

    def caches(self) -> dict[str, Any]:
        """What the caches have and miss."""
        ...

    def prepare_topics(self, names: list[str]) -> dict[str, Any]:
        """Write the logs of topics of the object store."""
        ...

    def recover_topics(self, names: list[str]) -> dict[str, Any]:
        """Create topics that every broker has prepared."""
        ...

    def pipelines(self) -> list[dict[str, Any]]:
        """The tables of topics, and how each is. Raises ``MillstreamError`` if the broker does not answer."""
        ...

    def machine(self) -> dict[str, Any]:
        """The machine, and what of it is off for a broker."""
        ...

    def backups(self) -> Backups:
        """Raises Rejected without a place, Unavailable if it cannot be read."""
        ...

    def audit(self, query: bodies.AuditQuery) -> dict[str, Any]:
        """Records of the audit."""
        ...

    def overview(self, topics_max: int, groups_max: int) -> Overview: ...

    def facts(self) -> Facts: ...


def make_router(broker: Broker, stats: StatsSlab) -> Router:
    """All routes of the broker; those of other rooms may be added until the server starts."""

    def counted(name: str) -> Callable[[], None]:
        return stats.counter("http_requests", route=name).inc

    def answering(route: Declared[Broker]) -> Callable[[Request], Response]:
        return lambda request: route.handler(broker, route.call(request))

    counters = {label: counted(label) for label in ("other", *(each.counted for each in ROUTES))}
    router = Router(counters["other"])
    for each in ROUTES:
        router.add(
            each.method,
            each.path,
            answering(each),
            needs=each.needs,
            body_bytes_max=each.body_bytes_max,
            count=counters[each.counted],
        )
    return router


def _page(broker: Broker, _: Call) -> Response:
    body = page(broker.facts(), broker.overview(PAGE_ROWS_MAX, PAGE_ROWS_MAX), _tables(broker))
    return Response(body, content_type=HTML, headers=(("Content-Security-Policy", POLICY),))


def _tables(broker: Broker) -> list[dict[str, Any]]:
    """The tables for the page, whose other parts are worth more than a failure."""
    try:
        return broker.pipelines()[:PAGE_ROWS_MAX]
    except MillstreamError:
        return []


def _health(broker: Broker, _: Call) -> Response:
    try:
        return Response(dump({"status": "ok", **broker.health()}))
    except MillstreamError as error:
        return Response(dump({"status": "unavailable", "error": error.code.name, "message": error.message}), 503)


def _metrics(broker: Broker, _: Call) -> Response:
    return Response(broker.metrics(), content_type=METRICS_TYPE)


def _segments(broker: Broker, call: Call) -> Response:
    try:
        return Response(dump(broker.segments(call.request.variables["topic"])))
    except Rejected as error:
        unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise HttpError(404 if unknown else 400, error.code.name, error.message) from None


def _tiers(broker: Broker, call: Call) -> Response:
    return Response(dump(broker.tiers(call.query.topic)))


def _audit(broker: Broker, call: Call) -> Response:
    return Response(dump(broker.audit(call.query)))


def _topics(broker: Broker, call: Call) -> Response:
    found = broker.overview(call.query.limit, 0)
    return Response(dump(msgspec.to_builtins(bodies.TopicList(found.topics, found.topics_total))))


def _groups(broker: Broker, call: Call) -> Response:
    found = broker.overview(0, call.query.limit)
    return Response(dump(msgspec.to_builtins(bodies.GroupList(found.groups, found.groups_total))))


def _openapi(_: Broker, __: Call) -> Response:
    return Response(_document())


@cache
def _document() -> bytes:
    return dump(document(ROUTES, __version__))


def _shown(ask: Callable[[Broker], Any]) -> Callable[[Broker, Call], Response]:
    """A route that shows something of the broker."""
    return lambda broker, _: Response(dump(ask(broker)))


def _changed(change: Callable[[Broker, Any], Any]) -> Callable[[Broker, Call], Response]:
    """A route that has the broker do something with its body."""
    return lambda broker, call: Response(dump(change(broker, call.body)))


_SEE: Final = Right(Operation.DESCRIBE)
_CHANGE: Final = Right(Operation.ALTER)
_OF_TOPIC: Final = Right(Operation.READ, ResourceType.TOPIC, "topic")
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_OBJECT: Final = dict[str, Any]
"""An answer whose fields depend on what the broker runs."""


def _get(path: str, doc: str, ask: Callable[[Broker], Any], answer: Any = _OBJECT) -> Declared[Broker]:
    return Declared(method="GET", path=path, doc=doc, needs=_SEE, handler=_shown(ask), answer=answer)


def _post(
    path: str,
    doc: str,
    change: Callable[[Broker, Any], Any],
    body: Any,
    body_bytes_max: int,
    answer: Any,
    example: Any = None,
) -> Declared[Broker]:
    return Declared(
        method="POST",
        path=path,
        doc=doc,
        needs=_CHANGE,
        handler=_changed(change),
        body=body,
        body_bytes_max=body_bytes_max,
        answer=answer,
        example=example,
    )


ROUTES: Final[tuple[Declared[Broker], ...]] = (
    Declared(method="GET", path="/", doc="A page for people", needs=_SEE, handler=_page, content_type=HTML),
    Declared(
        method="GET",
        path="/healthz",
        doc="200 while every shard answers, 503 with the reason otherwise",
        needs=None,
        handler=_health,
        answer=bodies.Health,
        unwell=bodies.Unwell,
    ),
    Declared(
        method="GET",
        path="/metrics",
        doc="The metrics in Prometheus' text format",
        needs=None,
        handler=_metrics,
        content_type=METRICS_TYPE,
        counted="metrics",
    ),
    Declared(
        method="GET",
        path="/v1/openapi.json",
        doc="This API as an OpenAPI 3.1 document",
        needs=_SEE,
        handler=_openapi,
        answer=_OBJECT,
    ),
    _get("/v1/status", "Every shard's own figures", lambda broker: broker.status(), bodies.Status),
    _get(
        "/v1/cluster",
        "Brokers, controller, and partitions without leader or with too few replicas",
        lambda broker: broker.cluster(),
    ),
    _post(
        "/v1/cluster",
        "Change modes of brokers, or move replicas; moves have started when the answer comes",
        lambda broker, request: broker.change_cluster(request),
        AdminRequest,
        4 * _MIB,
        bodies.Changed,
        {"type": "set_broker_mode", "node": 1, "mode": "drained"},
    ),
    _get("/v1/recovery", "What this broker knows of each of its Raft groups", lambda broker: broker.replicas()),
    _post(
        "/v1/recovery",
        "Lead groups alone whose majority is lost (unsafe recovery)",
        lambda broker, order: broker.lead_alone(order),
        bodies.LeadAlone,
        4 * _MIB,
        bodies.LedAlone,
        {"groups": [17], "lost": [2, 3], "reason": "two disks are lost"},
    ),
    _post(
        "/v1/partitions/repair",
        "Plan or carry out the repair of a partition that is not served",
        lambda broker, asked: broker.repair_partition(asked),
        bodies.RepairAsked,
        64 * _KIB,
        bodies.Repaired,
        {"topic": "orders", "partition": 0, "execute": False},
    ),
    _get("/v1/loggers", "The loggers and their levels", lambda broker: broker.loggers(), bodies.Loggers),
    _post(
        "/v1/loggers",
        "Give a logger another level for a time, on all shards of this broker",
        lambda broker, asked: broker.set_logger(asked),
        bodies.LoggerLevel,
        _KIB,
        bodies.Loggers,
        {"logger": "raft", "level": "DEBUG", "minutes": 10},
    ),
    _get(
        "/v1/certificates",
        "The listeners' certificates, and when they end",
        lambda broker: broker.certificates(),
        bodies.Certificates,
    ),
    _post(
        "/v1/certificates/reload",
        "Read the listeners' key material again",
        lambda broker, _: broker.reload_certificates(),
        None,
        _KIB,
        bodies.Reloaded,
    ),
    _get(
        "/v1/brokers",
        "Registered brokers of a cluster: address, rack, release, mode, and how many partitions each leads and holds",
        lambda broker: {"brokers": broker.cluster()["brokers"]},
        bodies.BrokerList,
    ),
    Declared(
        method="GET",
        path="/v1/topics",
        doc="Topics with their partitions, records, bytes and counters",
        needs=_SEE,
        handler=_topics,
        query=bodies.ListQuery,
        answer=bodies.TopicList,
    ),
    Declared(
        method="GET",
        path="/v1/groups",
        doc="Groups with type, state, members, and lag by topic (share groups: none)",
        needs=_SEE,
        handler=_groups,
        query=bodies.ListQuery,
        answer=bodies.GroupList,
    ),
    Declared(
        method="GET",
        path="/v1/topics/{topic}/segments",
        doc="Where the files of a topic are, for readers on the broker's machine",
        needs=_OF_TOPIC,
        handler=_segments,
        answer=_OBJECT,
        counted="manifest",
    ),
    _get(
        "/v1/pipelines",
        "The tables of topics: state, rows, lag",
        lambda broker: {"pipelines": broker.pipelines()},
        bodies.Pipelines,
    ),
    _get(
        "/v1/machine",
        "The machine, and which of its settings slow the broker down",
        lambda broker: broker.machine(),
        bodies.Machine,
    ),
    Declared(
        method="GET",
        path="/v1/audit",
        doc="Who logged in, what was refused, who changed and who read what; the newest first",
        needs=_CHANGE,
        handler=_audit,
        query=bodies.AuditQuery,
        answer=bodies.AuditRecords,
    ),
    Declared(
        method="GET",
        path="/v1/tiers",
        doc="How far tiered topics are archived",
        needs=_SEE,
        handler=_tiers,
        query=bodies.TopicQuery,
        answer=_OBJECT,
    ),
    _get("/v1/cache", "What the caches have, and how large the warm cache must be", lambda broker: broker.caches()),
    _post(
        "/v1/tiers/prepare",
        "Write the logs of topics of the object store; asked of every broker before they are recovered",
        lambda broker, wanted: broker.prepare_topics(wanted.topics),
        bodies.TopicNames,
        _MIB,
        bodies.TopicResults,
        {"topics": ["orders"]},
    ),
    _post(
        "/v1/tiers/recover",
        "Create topics of the object store that every broker has prepared",
        lambda broker, wanted: broker.recover_topics(wanted.topics),
        bodies.TopicNames,
        _MIB,
        bodies.TopicResults,
        {"topics": ["orders"]},
    ),
    *TOPIC_ROUTES,
    *RESOURCE_ROUTES,
    _get(
        "/v1/backups",
        "Backups in the place that `backup.url` names; `millstream backup` makes and restores them",
        lambda broker: msgspec.to_builtins(broker.backups()),
        Backups,
    ),
    *BUNDLE_ROUTES,
)
"""Every route of the broker itself."""

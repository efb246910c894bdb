"""What the broker itself answers over HTTP; other rooms add their routes to the same router.

===================================  ==================================================================
``GET /``                            a page for people
``GET /healthz``                     200 while every shard answers, 503 with the reason otherwise
``GET /metrics``                     Prometheus' text format
``GET /v1/status``                   every shard's own figures
``GET /v1/cluster``                  brokers, controller, and partitions without leader or with too few replicas
``GET /v1/tiers``                    how far tiered topics are archived (``?topic=`` for one)
``GET /v1/cache``                    what the caches have, and how large the warm cache must be
``POST /v1/tiers/prepare``           write the logs of topics of the object store (``{"topics": […]}``, empty for all)
``POST /v1/cluster``                 modes of brokers, moves of replicas (`app.cluster_changes`)
``GET /v1/recovery``                 what this broker knows of each of its Raft groups (`app.recovering`)
``POST /v1/recovery``                lead groups alone whose majority is lost for good
``POST /v1/tiers/recover``           create them; every broker of the cluster is prepared before
``GET /v1/topics/<name>/segments``   where the files of a topic are (``partition.manifest``)
===================================  ==================================================================
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from millstream.admin.overview import Facts, Overview
from millstream.admin.page import POLICY, page
from millstream.admin.routing import HTML, HttpError, Request, Response, Router, dump
from millstream.errors import MillstreamError, Rejected
from millstream.model.error_code import ErrorCode
from millstream.telemetry.metrics import StatsSlab

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE_ROWS_MAX = 200


class _Topics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topics: list[str] = []


class Broker(Protocol):
    """What the endpoints ask; the composition root answers. Called on the server's threads."""

    def metrics(self) -> bytes: ...

    def health(self) -> dict[str, Any]:
        """Facts of a broker that is well; raises ``MillstreamError`` with the reason otherwise."""
        ...

    def status(self) -> dict[str, Any]: ...

    def cluster(self) -> dict[str, Any]:
        """The state of the cluster as this broker sees it."""
        ...

    def change_cluster(self, body: bytes) -> dict[str, Any]:
        """Raises Rejected for a request that is none, another error for one that was not carried out."""
        ...

    def replicas(self) -> dict[str, Any]:
        """What this broker knows of each of its Raft groups."""
        ...

    def lead_alone(self, body: bytes) -> dict[str, Any]:
        """Unsafe recovery. Raises Rejected for a request that is none or must not be carried out."""
        ...

    def repair_partition(self, body: bytes) -> dict[str, Any]:
        """Plan a repair of a partition that is not served, or do it."""
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

    def overview(self, topics_max: int, groups_max: int) -> Overview: ...

    def facts(self) -> Facts: ...


def make_router(broker: Broker, stats: StatsSlab) -> Router:
    """All routes of the broker; those of other rooms may be added until the server starts."""

    def counted(name: str) -> Callable[[], None]:
        return stats.counter("http_requests", route=name).inc

    def people(request: Request) -> Response:
        _ = request
        body = page(broker.facts(), broker.overview(PAGE_ROWS_MAX, PAGE_ROWS_MAX))
        return Response(body, content_type=HTML, headers=(("Content-Security-Policy", POLICY),))

    def health(request: Request) -> Response:
        _ = request
        try:
            return Response(dump({"status": "ok", **broker.health()}))
        except MillstreamError as error:
            return Response(dump({"status": "unavailable", "error": error.code.name, "message": error.message}), 503)

    def metrics(request: Request) -> Response:
        _ = request
        return Response(broker.metrics(), content_type=METRICS_TYPE)

    def status(request: Request) -> Response:
        _ = request
        return Response(dump(broker.status()))

    def cluster(request: Request) -> Response:
        _ = request
        return Response(dump(broker.cluster()))

    def replicas(request: Request) -> Response:
        _ = request
        return Response(dump(broker.replicas()))

    def changed(request: Request, change: Callable[[bytes], dict[str, Any]]) -> Response:
        try:
            return Response(dump(change(request.body)))
        except MillstreamError as error:
            raise HttpError(400 if isinstance(error, Rejected) else 503, error.code.name, error.message) from None

    def segments(request: Request) -> Response:
        try:
            return Response(dump(broker.segments(request.variables["topic"])))
        except Rejected as error:
            unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise HttpError(404 if unknown else 400, error.code.name, error.message) from None

    router = Router(counted("other"))
    router.add("GET", "/", people)
    router.add("GET", "/healthz", health, open=True)
    router.add("GET", "/metrics", metrics, count=counted("metrics"), open=True)
    router.add("GET", "/v1/status", status)
    router.add("GET", "/v1/cluster", cluster)
    router.add("POST", "/v1/cluster", lambda request: changed(request, broker.change_cluster), body_bytes_max=4 << 20)
    router.add("GET", "/v1/recovery", replicas)
    router.add("POST", "/v1/recovery", lambda request: changed(request, broker.lead_alone), body_bytes_max=4 << 20)
    router.add(
        "POST",
        "/v1/partitions/repair",
        lambda request: changed(request, broker.repair_partition),
        body_bytes_max=1 << 16,
    )
    router.add("GET", "/v1/topics/{topic}/segments", segments, count=counted("manifest"))
    _add_tiers(router, broker)
    return router


def _add_tiers(router: Router, broker: Broker) -> None:
    """The routes of tiered topics and of the caches."""

    def tiers(request: Request) -> Response:
        return Response(dump(broker.tiers(request.query.get("topic"))))

    def caches(request: Request) -> Response:
        _ = request
        return Response(dump(broker.caches()))

    def prepare(request: Request) -> Response:
        return recovering(request, broker.prepare_topics)

    def recover(request: Request) -> Response:
        return recovering(request, broker.recover_topics)

    def recovering(request: Request, step: Callable[[list[str]], dict[str, Any]]) -> Response:
        try:
            names = msgspec.json.decode(request.body, type=_Topics).topics
        except msgspec.MsgspecError as error:
            raise HttpError(400, "INVALID_REQUEST", f'expected {{"topics": ["NAME", …]}}: {error}') from None
        try:
            return Response(dump(step(names)))
        except MillstreamError as error:
            raise HttpError(400 if isinstance(error, Rejected) else 503, error.code.name, error.message) from None

    router.add("GET", "/v1/tiers", tiers)
    router.add("GET", "/v1/cache", caches)
    router.add("POST", "/v1/tiers/prepare", prepare, body_bytes_max=1 << 20)
    router.add("POST", "/v1/tiers/recover", recover, body_bytes_max=1 << 20)

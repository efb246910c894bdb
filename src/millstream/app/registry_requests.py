"""The schema registry over HTTP: which requests are its own, what they need, and their way to the side process.

The registry answers one request at a time, because each decision is written before the next one is made. A request that
waits for more than ``WAIT_S`` for its turn is answered with 503. If the side process fails during a request, the answer
is 500 with error code 50002: the request may have been carried out. Nothing is lost by that, because all state is in
the topic ``_schemas``.
"""

import importlib.util
import json
import threading
from contextlib import closing
from http import HTTPStatus
from typing import Final

from millstream.admin.callers import forbidden
from millstream.admin.routing import HttpError, Request, Response, Router
from millstream.app.own_way import NO_WAY
from millstream.app.registry_rights import registry_needs, schema_id_of, subject_need
from millstream.app.side_frames import SideRequest
from millstream.app.side_process import SideFailed, SideProcess
from millstream.errors import how_to_install
from millstream.model.access import Operation
from millstream.telemetry.log import log
from millstream.telemetry.metrics import StatsSlab

PATHS: Final = ("subjects", "schemas", "compatibility", "config", "mode", "contexts", "master_available")
"""First parts of the paths that are the schema registry's."""
BODY_BYTES_MAX: Final = 4 << 20
WAIT_S: Final = 10.0
_PACKAGES: Final = ("avro", "fastavro", "grpc_tools", "jsonschema")
_KIND: Final = "application/vnd.schemaregistry.v1+json"


class RegistryRequests:
    """The registry's routes. Shared by the HTTP threads."""

    def __init__(self, side: SideProcess) -> None:
        self._side = side
        self._turn = threading.Lock()

    def mount(self, router: Router, stats: StatsSlab) -> None:
        """Let the registry answer all requests for its paths."""
        count = stats.counter("http_requests", route="registry").inc
        for path in PATHS:
            router.mount(
                path, self.ask, needs=registry_needs, body_bytes_max=BODY_BYTES_MAX, count=count, failure=_refused
            )

    def ask(self, request: Request) -> Response:
        """Pass a request on and wait for the response.

        Raises:
            HttpError: the caller may see none of the subjects that have the schema it asks for by id.
        """
        if request.caller is not None and (schema_id := schema_id_of(request.path)):
            query = request.target.partition("?")[2]
            asked = Request("GET", "", f"/schemas/ids/{schema_id}/subjects?{query}&deleted=true")
            subjects = self._pass_on(asked)
            if subjects.status != HTTPStatus.OK:
                return subjects
            needs = [subject_need(subject, Operation.DESCRIBE) for subject in json.loads(subjects.body)]
            if needs and not any(request.caller.allowed(needs)):
                raise forbidden(request.caller.principal, needs[0])
        return self._pass_on(request)

    def _pass_on(self, request: Request) -> Response:
        missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            return _failed(
                501,
                50101,
                f"The schema registry needs more packages: {how_to_install('schemas')}, then start again",
            )
        if not self._side.settings.registry_bootstrap:
            return _failed(
                501,
                50101,
                f"The schema registry cannot reach the brokers: {NO_WAY}",
            )
        if not self._turn.acquire(timeout=WAIT_S):
            return _failed(503, 50302, f"The schema registry is busy: no answer in {WAIT_S:.0f} s. Nothing was written")
        try:
            return self._ask(SideRequest("registry", request.method, request.target, {**request.headers}, request.body))
        finally:
            self._turn.release()

    def _ask(self, request: SideRequest) -> Response:
        try:
            exchange = self._side.begin(request)
        except SideFailed as error:
            return _failed(503, 50302, f"The schema registry does not run: {error}. Nothing was written")
        try:
            with closing(exchange):
                head = exchange.head()
                return Response(b"".join((head.body, *exchange)), head.status, head.content_type)
        except SideFailed as error:
            log.warning("a request of the schema registry failed: %s", error)
            return _failed(500, 50002, "The schema registry failed. It is not known if the request was carried out")


def _failed(status: int, code: int, message: str) -> Response:
    return Response(json.dumps({"error_code": code, "message": message}).encode(), status, _KIND)


def _refused(error: HttpError) -> Response:
    """What the HTTP port refuses, in the form of the registry's own errors."""
    return _failed(error.status, error.status, error.message)

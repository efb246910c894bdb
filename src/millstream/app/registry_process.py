"""The supervisor's end of the schema registry: starts its process when it is first needed, and passes requests on.

The registry runs in a process of its own, which is an ordinary client of this broker: parsing schemas and comparing
them takes milliseconds to seconds and large libraries, and the supervisor has neither. A request goes over a socket
pair and waits for its response, one at a time; HTTP threads are few, and a request that waits for more than
``WAIT_S`` for its turn is answered with 503. A process that dies, or is silent for ``ANSWER_S``, is replaced at the
next request, and the request that it had is answered with 500 and error code 50002: it may have been carried out.
Nothing is lost by that, because all state is in the topic ``_schemas``. The broker does not go down with it.
"""

import importlib.util
import json
import socket
import subprocess
import sys
import threading
from http import HTTPStatus
from typing import Final

import msgspec

from millstream.admin.callers import forbidden
from millstream.admin.routing import HttpError, Request, Response, Router
from millstream.app.registry_rights import registry_needs, schema_id_of, subject_need
from millstream.errors import how_to_install
from millstream.model.access import Operation
from millstream.telemetry.log import log
from millstream.telemetry.metrics import StatsSlab

PATHS: Final = ("subjects", "schemas", "compatibility", "config", "mode", "contexts", "master_available")
"""First parts of the paths that are the schema registry's."""
BODY_BYTES_MAX: Final = 4 << 20
WAIT_S: Final = 10.0
ANSWER_S: Final = 60.0
_STOP_S: Final = 2.0
_PACKAGES: Final = ("avro", "fastavro", "grpc_tools", "jsonschema")
_KIND: Final = "application/vnd.schemaregistry.v1+json"


class RegistryProcess:
    """The registry's process, started by the first request. Shared by the HTTP threads."""

    def __init__(self, bootstrap: str) -> None:
        """``bootstrap`` is where it reaches this broker: an address, or the broker's socket file."""
        self._bootstrap = bootstrap
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._closed = False

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
        if not self._bootstrap:
            return _failed(
                501,
                50101,
                "The schema registry of a cluster needs a listener without TLS and login on every broker, such as one "
                "on an address that only brokers reach",
            )
        if not self._turn.acquire(timeout=WAIT_S):
            return _failed(503, 50302, f"The schema registry is busy: no answer in {WAIT_S:.0f} s. Nothing was written")
        try:
            if self._closed:
                return _failed(503, 50302, "The broker is stopping. Nothing was written")
            sent = {
                "method": request.method,
                "target": request.target,
                "headers": request.headers,
                "body": request.body,
            }
            return self._ask(msgspec.msgpack.encode(sent))
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the process, if there is one; requests are refused from now on."""
        self._closed = True
        if self._turn.acquire(timeout=_STOP_S):
            try:
                self._end()
            finally:
                self._turn.release()
        elif self._process is not None:
            self._process.kill()

    def _ask(self, request: bytes) -> Response:
        channel = self._started()
        try:
            channel.sendall(len(request).to_bytes(4, "big") + request)
            size = int.from_bytes(_exactly(channel, 4), "big")
            return msgspec.msgpack.decode(_exactly(channel, size), type=Response)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the schema registry's process is replaced: %s", error)
            self._end()
            return _failed(500, 50002, "The schema registry failed. It is not known if the request was carried out")

    def _started(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            log.warning(
                "the schema registry's process ended with code %d and is started again", self._process.returncode
            )
            self._end()
        if self._channel is None:
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-m", "millstream.app.registry_main", str(theirs.fileno()), self._bootstrap]
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            ours.settimeout(ANSWER_S)
            self._channel = ours
        return self._channel

    def _end(self) -> None:
        channel, process = self._channel, self._process
        self._channel = self._process = None
        if channel is not None:
            channel.close()
        if process is not None:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = channel.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionResetError("it ended while it had a request")
        data += piece
    return bytes(data)


def _failed(status: int, code: int, message: str) -> Response:
    return Response(json.dumps({"error_code": code, "message": message}).encode(), status, _KIND)


def _refused(error: HttpError) -> Response:
    """What the HTTP port refuses, in the form of the registry's own errors."""
    return _failed(error.status, error.status, error.message)

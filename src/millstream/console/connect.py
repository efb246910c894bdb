"""Kafka Connect by its REST API: the connectors of one Connect cluster, their tasks, and changes of their state.

::

    URL, properties ──connect_access──► ConnectAccess ──connectors, connector, change──► values

Only documented resources are asked: ``GET /``, ``GET /connectors?expand=…`` (Kafka 2.3), ``/connectors/NAME`` with
``status``, ``pause``, ``resume``, ``restart`` and ``tasks/N/restart``. Redirects are refused, so that no login goes
where the URL does not say. A login in clear is for this machine only, and is never the brokers'. An answer has
``TIMEOUT_S`` in all and ``BYTES_MAX``. A change is sent once.

Bad input: an answer that is not of Connect's form is ``Rejected`` in words. What a worker says of an error is shown as
it says it. Values of a connector's configuration whose names look like secrets are left out: Connect sends them in
clear.
"""

import base64
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final, TypeVar

import msgspec

from millstream.client.security import Security, context_of, read_security, resolve
from millstream.config.listeners import is_loopback
from millstream.errors import MillstreamError, Rejected, Unavailable

TIMEOUT_S: Final = 5.0
BYTES_MAX: Final = 16 << 20
URL: Final = "connect.url"
USER_INFO: Final = "connect.basic.auth.user.info"
_PREFIX: Final = "connect."
_SECRET: Final = re.compile(r"passw|secret|token|credential|jaas|auth|\bkey\b|key$|sas|signature", re.IGNORECASE)
_T = TypeVar("_T")


class ConnectAccess(msgspec.Struct, frozen=True):
    """Where a Connect cluster is, and how to prove oneself there. Its repr is without secrets."""

    url: str
    security: Security
    authorization: str = ""

    @property
    def proves_itself(self) -> bool:
        """Whether the worker knows whom it speaks to."""
        return bool(self.authorization or self.security.tls.keystore_location or self.security.tls.keystore_key)

    def __repr__(self) -> str:
        return f"ConnectAccess({self.url})"


class Task(msgspec.Struct, frozen=True):
    """A task of a connector; ``trace`` is why it failed."""

    id: int
    state: str
    worker_id: str = ""
    trace: str = ""


class _State(msgspec.Struct, frozen=True):
    state: str
    worker_id: str = ""
    trace: str = ""


class Status(msgspec.Struct, frozen=True):
    """A connector and its tasks, as ``GET /connectors/NAME/status`` says."""

    name: str
    connector: _State
    tasks: list[Task] = []
    type: str = ""

    @property
    def running(self) -> int:
        return sum(task.state == "RUNNING" for task in self.tasks)

    @property
    def failed(self) -> bool:
        return self.connector.state == "FAILED" or any(task.state == "FAILED" for task in self.tasks)


class _Expanded(msgspec.Struct, frozen=True):
    status: Status


class _Info(msgspec.Struct, frozen=True):
    config: dict[str, str | None] = {}


class Root(msgspec.Struct, frozen=True):
    """What a worker is."""

    version: str = ""
    kafka_cluster_id: str = ""


def connect_access(url: str, properties: Mapping[str, str]) -> ConnectAccess:
    """The access to a Connect cluster; ``connect.…`` among ``properties`` is for it, TLS settings as ``connect.ssl.…``.

    Raises:
        Rejected: a name or value is not valid; the message has no secret.
    """
    given = {name.removeprefix(_PREFIX): text for name, text in properties.items() if name.startswith(_PREFIX)}
    given.pop("url", None)
    user_info = resolve(given.pop("basic.auth.user.info", ""))
    for name in given:
        if not name.startswith(("ssl.", "enable.ssl.")):
            raise Rejected(f"{_PREFIX}{name}: there is no such setting of Kafka Connect's client")
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urllib.parse.SplitResult("", "", "", "", ""), "", None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        shown = url.rpartition("@")[2]
        raise Rejected(
            f"{shown!r} is no URL of Kafka Connect such as http://127.0.0.1:8083 ({USER_INFO} has the login)"
        )
    if user_info and parts.scheme == "http" and not is_loopback(host):
        raise Rejected(f"http://{parts.netloc} is not encrypted, and a login would cross it in clear")
    literal = f"[{host}]" if ":" in host else host
    clean = f"{parts.scheme}://{literal}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"
    authorization = f"Basic {base64.b64encode(user_info.encode()).decode()}" if user_info else ""
    return ConnectAccess(clean, read_security({"security.protocol": "SSL", **given}), authorization)


def root(access: ConnectAccess) -> Root:
    """What answers there."""
    return _of(Root, _ask(access, "GET", "/"))


def connectors(access: ConnectAccess) -> list[Status]:
    """All connectors with their tasks, by name.

    Raises:
        Rejected: the worker refuses, or is no worker of Connect from Kafka 2.3.
        Unavailable: it does not answer.
    """
    found = _of(dict[str, _Expanded], _ask(access, "GET", "/connectors?expand=status"))
    return [each.status for _, each in sorted(found.items())]


def connector(access: ConnectAccess, name: str) -> tuple[Status, list[tuple[str, str | None]]]:
    """One connector, and its configuration by name; None for a value that looks like a secret."""
    status = _of(Status, _ask(access, "GET", f"/connectors/{_quoted(name)}/status"))
    info = _of(_Info, _ask(access, "GET", f"/connectors/{_quoted(name)}"))
    return status, [(key, None if _SECRET.search(key) else value or "") for key, value in sorted(info.config.items())]


def change(access: ConnectAccess, name: str, action: str, task: int | None = None) -> None:
    """Pause, resume or restart a connector, or restart one of its tasks. The worker does it later.

    Raises:
        Rejected: there is no such action, or the worker refuses.
        Unavailable: it is not known if the worker does it.
    """
    path = f"/connectors/{_quoted(name)}"
    if action in ("pause", "resume"):
        _ask(access, "PUT", f"{path}/{action}")
    elif action == "restart" and task is not None:
        _ask(access, "POST", f"{path}/tasks/{task}/restart")
    elif action in ("restart", "restart-failed"):
        failed = "true" if action == "restart-failed" else "false"
        _ask(access, "POST", f"{path}/restart?includeTasks=true&onlyFailed={failed}")
    else:
        raise Rejected(f"a connector has no action {action!r}")


def _quoted(name: str) -> str:
    if not name or name in (".", ".."):
        raise Rejected(f"{name!r} is no name of a connector")
    return urllib.parse.quote(name, safe="")


def _of(kind: type[_T], found: Any) -> _T:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise Rejected(f"what answers there is not Kafka Connect 2.3 or later: {error}") from None


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it is an error like others."""

    def redirect_request(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


def _ask(access: ConnectAccess, method: str, path: str) -> Any:
    """The document that a worker answers; None if it answers without one."""
    handlers: list[urllib.request.BaseHandler] = [_Stay()]
    if access.url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=context_of(access.security)))
    if is_loopback(urllib.parse.urlsplit(access.url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if access.authorization:
        headers["Authorization"] = access.authorization
    body = b"" if method != "GET" else None
    request = urllib.request.Request(access.url + path, body, headers, method=method)  # noqa: S310 (checked)
    deadline = time.monotonic() + TIMEOUT_S
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S) as answer:
            read = _read(answer, deadline)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(access, error, deadline) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        said = f"no answer within {TIMEOUT_S:.0f} s" if isinstance(reason, TimeoutError) else str(reason)
        raise Unavailable(f"Kafka Connect at {access.url}: {said}") from None
    try:
        return json.loads(read) if read.strip() else None
    except ValueError:
        raise Rejected(f"what answers at {access.url} is not Kafka Connect: its answer is no JSON") from None


def _read(answer: Any, deadline: float) -> bytes:
    """The whole body, within the time and the size that an answer may have."""
    parts, size = list[bytes](), 0
    while part := answer.read1(64 << 10):
        parts.append(part)
        size += len(part)
        if size > BYTES_MAX:
            raise Rejected(f"an answer of Kafka Connect has more than {BYTES_MAX >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(parts)


def _refused(access: ConnectAccess, error: urllib.error.HTTPError, deadline: float) -> MillstreamError:
    """A status that is no success, in the words of the worker."""
    if 300 <= error.code < 400:
        return Rejected(f"Kafka Connect at {access.url} redirects, which is not followed; give the URL of a worker")
    try:
        found: Any = json.loads(_read(error, deadline))
        said = str(found["message"])
    except (OSError, ValueError, KeyError, TypeError, HTTPException, MillstreamError):
        said = error.reason
    if error.code in (401, 403):
        return Rejected(f"Kafka Connect at {access.url} refuses the login: {said} ({USER_INFO} has it)")
    if error.code == 409:
        return Unavailable(f"Kafka Connect at {access.url} rebalances, try again: {said}")
    kind = Unavailable if error.code >= 500 else Rejected
    return kind(f"Kafka Connect at {access.url}: {said} ({error.code})")


def all_of(accesses: Sequence[ConnectAccess]) -> list[tuple[Root | None, list[Status], str]]:
    """Each Connect cluster with its connectors, or why it has none to show. All are asked at once."""
    found: list[tuple[Root | None, list[Status], str]] = [(None, [], "")] * len(accesses)

    def ask(place: int) -> None:
        try:
            found[place] = root(accesses[place]), connectors(accesses[place]), ""
        except MillstreamError as error:
            found[place] = None, [], error.message

    threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(len(accesses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found

"""One HTTP request to an issuer of tokens, or one file: bounded in size and in time, and never redirected.

An issuer that is slow, endless or redirects elsewhere is ``Unavailable`` after at most ``TOTAL_S`` (resolving its name
comes on top). No proxy is used. Which URLs may be asked says ``config.urls``. Blocks the caller's thread.
"""

import http.client
import os
import socket
import ssl
import stat
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Final

from millstream.errors import Rejected, Unavailable
from millstream.secure.words import say

TOTAL_S: Final = 10.0
_HTTPS_PORT: Final = 443
_HTTP_PORT: Final = 80
_NO_HEADERS: Final[Mapping[str, str]] = {}


def fetch(
    url: str,
    bytes_max: int,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] = _NO_HEADERS,
    truststore: str = "",
) -> bytes:
    """The answer's body; with ``body`` the request is a POST. ``truststore`` is a PEM file, empty for the system's.

    Raises:
        Rejected: the issuer answers 400 or 401: what was asked is wrong.
        Unavailable: it does not answer with 200, in time, within ``bytes_max``, over a connection that is trusted.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    secure = parts.scheme == "https"
    connection = http.client.HTTPConnection(host, parts.port or (_HTTPS_PORT if secure else _HTTP_PORT))
    try:
        raw = socket.create_connection((connection.host, connection.port), TOTAL_S)
    except OSError as error:
        raise Unavailable(f"{host} cannot be reached: {say(error)}") from None
    late = threading.Event()
    other = raw.dup()
    clock = threading.Timer(TOTAL_S, _hang_up, (other, late))
    clock.daemon = True
    clock.start()
    try:
        context = ssl.create_default_context(cafile=truststore or None) if secure else None
        connection.sock = raw if context is None else context.wrap_socket(raw, server_hostname=host)
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        connection.request("GET" if body is None else "POST", target, body, dict(headers))
        answer = connection.getresponse()
        data = answer.read(bytes_max + 1)
    except (OSError, http.client.HTTPException) as error:
        what = say(error) if isinstance(error, OSError) else "its answer is not HTTP, or ends early"
        raise Unavailable(f"{host} does not answer: {what}") from None
    finally:
        clock.cancel()
        other.close()
        connection.close()
        raw.close()
    if late.is_set():
        raise Unavailable(f"{host} does not answer within {TOTAL_S:.0f} s")
    if answer.status in (http.client.BAD_REQUEST, http.client.UNAUTHORIZED):
        raise Rejected(f"{host} refuses the request with status {answer.status}")
    if answer.status != http.client.OK:
        moved = ", which is not followed" if http.client.MULTIPLE_CHOICES <= answer.status < 400 else ""
        raise Unavailable(f"{host} answers with status {answer.status}{moved}")
    if len(data) > bytes_max:
        raise Unavailable(f"the answer of {host} has more than {bytes_max} bytes")
    return data


def read_small_file(path: str, bytes_max: int) -> bytes:
    """A regular file of at most ``bytes_max`` bytes. Raises Unavailable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Unavailable(f"{path} is no regular file")
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > bytes_max:
        raise Unavailable(f"{path} has more than {bytes_max} bytes")
    return data


def _hang_up(sock: socket.socket, late: threading.Event) -> None:
    """End a connection that another thread waits for."""
    late.set()
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass

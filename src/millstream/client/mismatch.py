"""Why a peer ends every connection of a client before its first answer: the two do not speak the same.

A broker with TLS ends a connection in clear without a word, a broker without TLS one that starts with a handshake, and
a listener with logins one whose first request comes without a login. Each looks like a broker that restarts, and a
client would repeat its attempts until its time is over. So it asks here, once, over a connection of its own:

==============  =======================================  ====================
The client has  What is tried                            What it then needs
==============  =======================================  ====================
no TLS          a handshake that trusts any certificate  ``…SSL``
TLS             ApiVersions in clear                     ``PLAINTEXT``
no login        SaslHandshake                            ``SASL_…``
==============  =======================================  ====================

Only what the peer proves is said: of a broker that starts or stops nothing is.
"""

import socket
from contextlib import closing
from typing import Final

from millstream.client.security import Security, secured
from millstream.errors import MillstreamError
from millstream.wire.codec import decode_message
from millstream.wire.frames import request_frame
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from millstream.wire.schema import Request

_PATIENCE_S: Final = 3.0
_ANSWER_BYTES_MAX: Final = 1 << 16
_TRUSTING: Final = Security("SSL", check_name=False, verify=False)


def mismatch(host: str, port: int, security: Security, *, negotiated: bool) -> str:
    """What the client has to change, as a sentence about the broker; empty if that is not known.

    Args:
        host: the peer's.
        port: the peer's.
        security: the client's.
        negotiated: whether the peer has answered ApiVersions, and has ended the connection at the next request.
    """
    try:
        if negotiated:
            return "" if security.login else _login_wanted(host, port, security)
        if security.speaks_tls:
            return _clear_wanted(host, port)
        secured(_dialled(host, port), host, _TRUSTING).close()
    except (OSError, MillstreamError):
        return ""
    return (
        "the broker takes TLS only; set security.protocol=SSL, or SASL_SSL if it asks for logins, and "
        "ssl.truststore.location to its certificate authority"
    )


def _clear_wanted(host: str, port: int) -> str:
    with closing(_dialled(host, port)) as sock:
        decode_message(ApiVersionsResponse, 0, _asked(sock, ApiVersionsRequest(), 0))
    return "the broker does not take TLS there; set security.protocol=PLAINTEXT, or SASL_PLAINTEXT with a login"


def _login_wanted(host: str, port: int, security: Security) -> str:
    with closing(secured(_dialled(host, port), host, security)) as sock:
        answer = _asked(sock, SaslHandshakeRequest(""), 1)
    mechanisms = decode_message(SaslHandshakeResponse, 1, answer).mechanisms
    if not mechanisms:
        return ""
    return (
        f"the broker asks for a login by {' or '.join(sorted(mechanisms))}; set security.protocol="
        f"{'SASL_SSL' if security.speaks_tls else 'SASL_PLAINTEXT'}, sasl.mechanism, and user and password or token"
    )


def _dialled(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=_PATIENCE_S)


def _asked(sock: socket.socket, request: Request, version: int) -> memoryview:
    """The body of the answer to the first request of a connection; empty if the peer ends it."""
    sock.sendall(request_frame(request, version, 0, "millstream-client"))
    with sock.makefile("rb") as stream:
        size = int.from_bytes(stream.read(4), "big")
        return memoryview(stream.read(min(size, _ANSWER_BYTES_MAX)))[4:]

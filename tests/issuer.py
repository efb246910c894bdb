"""A small issuer of tokens for tests: keys, tokens, and an HTTP server for its key set and its token endpoint."""

import base64
import functools
import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey

ISSUER = "https://id.example.org/"
AUDIENCE = "kafka"


@functools.cache
def rsa_key(number=0, bits=2048):
    return RSAKey.generate_key(bits, {"kid": f"rsa-{number}"})


@functools.cache
def ec_key(number=0, curve="P-256"):
    return ECKey.generate_key(curve, {"kid": f"ec-{number}-{curve}"})


def key_set(*keys):
    """The document with the public keys."""
    return json.dumps({"keys": [key.as_dict(private=False) | {"use": "sig"} for key in keys]}).encode()


def encoded(value):
    """A part of a token."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(user="svc-orders", lifetime_s=3600, now_s=None, **changed):
    """Claims as a broker expects them; a claim that is changed to None is left out."""
    now_s = time.time() if now_s is None else now_s
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": int(now_s), "exp": now_s + lifetime_s, "scope": "a b"}
    return {name: value for name, value in (made | changed).items() if value is not None}


def sign(payload, key=None, algorithm=None, **header):
    """A token. ``header`` is laid over alg and kid; None leaves one out."""
    key = ec_key() if key is None else key
    algorithm = algorithm or ("RS256" if isinstance(key, RSAKey) else "HS256" if isinstance(key, OctKey) else "ES256")
    whole = {"alg": algorithm, "kid": key.kid} | header
    whole = {name: value for name, value in whole.items() if value is not None}
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    signed = f"{encoded(whole)}.{encoded(body)}"
    signature = jws.JWSRegistry.algorithms[algorithm].sign(signed.encode(), key)
    return f"{signed}.{encoded(signature)}"


def token(user="svc-orders", key=None, **more):
    """A token that is taken."""
    return sign(claims(user, **more), key)


class Issuer:
    """``/keys`` and ``/token`` over HTTP on this machine. ``document`` and ``clients`` may change while it runs."""

    def __init__(self, *keys, tls=None):
        self.keys = keys or (ec_key(),)
        self.document = key_set(*self.keys)
        self.status = 200
        self.headers = {}
        self.clients = {"svc-orders": "issuer-secret-5120"}
        self.lifetime_s = 3600
        self.asked = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, self))
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def settings(self, **more):
        """Settings of a broker that trusts it."""
        return {
            "sasl.oauthbearer.jwks.endpoint.url": f"{self.url}/keys",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            **more,
        }

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, issuer, *args):
        self.issuer = issuer
        super().__init__(*args)

    def do_GET(self):
        self.issuer.asked.append(self.path)
        self._answer(self.issuer.status, self.issuer.document)

    def do_POST(self):
        self.issuer.asked.append(self.path)
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        given = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        user, _, secret = (urllib.parse.unquote_plus(word) for word in given.partition(":"))
        if form["grant_type"] != ["client_credentials"] or self.issuer.clients.get(user) != secret:
            self._answer(401, b'{"error":"invalid_client"}')
            return
        made = sign(claims(user, self.issuer.lifetime_s, scope=form.get("scope", [""])[0]), self.issuer.keys[0])
        self._answer(200, json.dumps({"access_token": made, "expires_in": self.issuer.lifetime_s}).encode())

    def _answer(self, status, body):
        self.send_response(status)
        for name, value in self.issuer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

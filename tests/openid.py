"""An OpenID provider for tests, on this machine: its document, keys, page, token endpoint and page to sign out.

It signs in at once whom ``user`` names. ``changes`` are laid over the claims of its ID tokens, ``sign`` makes them, and
``document`` is what it says of itself: a test makes it hostile by changing these.
"""

import base64
import functools
import json
import secrets
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from issuer import ec_key, key_set, sign
from millstream.secure.tokens.sign_in import challenge_of

CLIENT = "the-console"
SECRET = "console-secret-5521"


class Provider:
    """A provider that runs. ``key_document`` and ``status`` are of its key set."""

    def __init__(self, *, secret=SECRET):
        self.secret = secret
        self.user = "ann"
        self.changes = {}
        self.sign = sign
        self.status = 200
        self.headers = {}
        self.key_document = key_set(ec_key())
        self.asked = []
        self.access_token = None
        self._codes = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.document = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize?realm=tests",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "end_session_endpoint": f"{self.url}/logout",
        }
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def settings(self, **more):
        """Settings of a console whose visitors sign in here."""
        own = {"console.oidc.issuer.url": self.url, "console.oidc.client.id": CLIENT}
        return own | ({"console.oidc.client.secret": self.secret} if self.secret else {}) | more

    def redirect(self, target):
        """Where the browser is sent back to from the page at ``target``."""
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(target).query))
        assert (asked["client_id"], asked["response_type"]) == (CLIENT, "code")
        assert (asked["code_challenge_method"], asked["realm"]) == ("S256", "tests")
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        query = {"code": code, "state": asked["state"], "iss": self.document["issuer"]}
        return f"{asked['redirect_uri']}?{urllib.parse.urlencode(query)}"

    def tokens(self, form):
        """The answer of the token endpoint; None for a code that it does not know any more."""
        asked = self._codes.pop(form.get("code"), None)
        if (
            asked is None
            or form["grant_type"] != "authorization_code"
            or form["redirect_uri"] != asked["redirect_uri"]
            or challenge_of(form["code_verifier"]) != asked["code_challenge"]
        ):
            return None
        now_s = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "sub": self.user, "iat": now_s, "exp": now_s + 300}
        claims = {**claims, "nonce": asked["nonce"], **self.changes}
        id_token = self.sign({name: value for name, value in claims.items() if value is not None})
        access = "opaque" if self.access_token is None else self.access_token(claims)
        return {"id_token": id_token, "access_token": access, "token_type": "Bearer", "expires_in": 300}

    def knows(self, authorization, form):
        """Whether it is the console that asks."""
        if not self.secret:
            return form.get("client_id") == CLIENT and not authorization
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        return given == f"{CLIENT}:{self.secret}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, provider, *args):
        self.provider = provider
        super().__init__(*args)

    def do_GET(self):
        provider, path = self.provider, self.path.partition("?")[0]
        provider.asked.append(self.path)
        if path == "/.well-known/openid-configuration":
            self._answer(200, provider.document)
        elif path == "/keys":
            self._answer(provider.status, provider.key_document, **provider.headers)
        elif path == "/authorize":
            self._answer(302, b"", Location=provider.redirect(self.path))
        else:
            self._answer(200, b"signed out")

    def do_POST(self):
        self.provider.asked.append(self.path)
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        if not self.provider.knows(self.headers.get("Authorization", ""), form):
            self._answer(401, {"error": "invalid_client"})
            return
        found = self.provider.tokens(form)
        self._answer(*((400, {"error": "invalid_grant"}) if found is None else (200, found)))

    def _answer(self, status, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

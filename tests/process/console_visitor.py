"""A browser without a screen, for tests of the console that a broker serves."""

import http.client
import json
import re
import ssl
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from millstream.testing.process import Broker


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Browser:
    """Follows no redirect, and keeps cookies as a browser does."""

    def __init__(self, broker: Broker, words: Mapping[str, str] = {}, ca: Path | None = None, own: str = "") -> None:
        """``words`` are passwords of users. ``ca`` and ``own``: whom to trust over TLS, and what to show."""
        parts = urllib.parse.urlsplit(json.loads((broker.data_dir / "broker.json").read_text())["http"])
        self.host, self.scheme, self.words = parts.netloc, parts.scheme, words
        self._context = None if ca is None else ssl.create_default_context(cafile=ca)
        if self._context is not None and own:
            self._context.load_cert_chain(own)
        self.cookies: dict[str, str] = {}
        self.set: list[str] = []

    def open(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Any:
        """The response, not read; the caller closes its connection (``fp``)."""
        if self._context is None:
            connection = http.client.HTTPConnection(self.host, timeout=120)
        else:
            connection = http.client.HTTPSConnection(self.host, timeout=120, context=self._context)
        headers["Connection"] = "close"
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            headers.setdefault("Origin", f"{self.scheme}://{self.host}")
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        for cookie in answer.headers.get_all("Set-Cookie", []):
            self.set.append(cookie)
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return answer

    def get(self, path: str, **headers: str) -> Answered:
        with self.open(path, **headers) as answer:
            return Answered(answer.status, {**answer.headers}, answer.read().decode())

    def post(self, path: str, origin: str = "", **fields: str) -> Answered:
        token = re.search(r'name="token" value="([^"]+)"', self.get("/console/login").text) or re.search(
            r'name="token" value="([^"]+)"', self.get("/console/").text
        )
        assert token is not None
        body = urllib.parse.urlencode({"token": token[1], **fields})
        with self.open(path, "POST", body, Origin=origin or f"{self.scheme}://{self.host}") as answer:
            return Answered(answer.status, {**answer.headers}, answer.read().decode())

    def log_in(self, user: str, password: str = "") -> Answered:
        return self.post("/console/login", name=user, password=password or self.words[user])

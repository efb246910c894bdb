"""How a client reaches a schema registry: Confluent's names, hosts, redirects, certificates."""

import http.server
import json
import pickle
import ssl
import threading
from contextlib import contextmanager

import pytest

import certificates
from millstream.client import schema_registry
from millstream.client.schema_registry import RegistryRefused, ask, registry_access
from millstream.client.security import read_security
from millstream.errors import Rejected, Unavailable
from millstream.spark.schemas.source import RegistrySchemas

WORD = "word-of-the-brokers"
BROKERS = read_security(
    {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": WORD,
    }
)
OF_BROKERS = "Basic YWxpY2U6d29yZC1vZi10aGUtYnJva2Vycw=="
FOREIGN = "https://registry.example"


@contextmanager
def served(answers, tls=None):
    """A registry that answers with status, document and headers; yields its port and what it was asked."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, dict(self.headers)))
            status, document, headers = answers.get(self.path, (404, {"error_code": 40401, "message": "none"}, {}))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("properties", "headers"),
    [
        ({"basic.auth.user.info": "bob:p:w"}, {"Authorization": "Basic Ym9iOnA6dw=="}),
        (
            {"basic.auth.credentials.source": "USER_INFO", "schema.registry.basic.auth.user.info": "bob:p:w"},
            {"Authorization": "Basic Ym9iOnA6dw=="},
        ),
        ({"basic.auth.credentials.source": "SASL_INHERIT"}, {"Authorization": OF_BROKERS}),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "t0"}, {"Authorization": "Bearer t0"}),
        (
            {"bearer.auth.token": "${env:REGISTRY_TOKEN}", "bearer.auth.logical.cluster": "lsrc-1"},
            {"Authorization": "Bearer t1", "Target-Sr-Cluster": "lsrc-1"},
        ),
        ({}, {"Authorization": OF_BROKERS}),
    ],
    ids=range(6),
)  # fmt: skip
def test_confluents_names_log_in(monkeypatch, properties, headers):
    monkeypatch.setenv("REGISTRY_TOKEN", "t1")
    with served({"/subjects": (200, [], {})}) as (port, asked):
        access = pickle.loads(pickle.dumps(registry_access(f"http://127.0.0.1:{port}/", properties, BROKERS)))
        assert ask(access, "GET", "/subjects") == []
    got = {name.title(): value for name, value in asked[0][1].items()}
    assert {name: got.get(name) for name in headers} == headers


def test_a_user_in_the_url_logs_in_and_is_not_shown():
    with served({"/subjects": (200, [], {})}) as (port, asked):
        access = registry_access(f"http://bob:s%2Fcret@127.0.0.1:{port}", {})
        ask(access, "GET", "/subjects")
        assert asked[0][1]["Authorization"] == "Basic Ym9iOnMvY3JldA=="
        with pytest.raises(RegistryRefused) as refused:
            ask(access, "GET", "/nothing")
    assert (refused.value.status, refused.value.error_code) == (404, 40401)
    assert "cret" not in f"{access!r} {access.url} {refused.value}"
    with pytest.raises(Unavailable) as lost:
        ask(access, "GET", "/subjects")
    assert "cret" not in str(lost.value)


@pytest.mark.parametrize(
    ("url", "properties", "words"),
    [
        (FOREIGN, {"basic.auth.credentials.source": "SASL_INHERIT"}, "goes to no schema registry on another host"),
        (
            FOREIGN,
            {"bearer.auth.credentials.source": "SASL_OAUTHBEARER_INHERIT"},
            "goes to no schema registry on another host",
        ),
        (FOREIGN, {"basic.auth.credentials.source": "MAGIC"}, "expected URL, USER_INFO or SASL_INHERIT"),
        (FOREIGN, {"basic.auth.credentials.source": "URL"}, "has no user"),
        (FOREIGN, {"basic.auth.user.info": "S3CRET"}, "expected NAME:PASSWORD"),
        (FOREIGN, {"basic.auth.user.info": "a:S3CRET", "bearer.auth.token": "S3CRET"}, "exclude each other"),
        ("https://u:S3CRET@h", {"basic.auth.user.info": "a:S3CRET"}, "give one"),
        (FOREIGN, {"bearer.auth.credentials.source": "OAUTHBEARER"}, "needs bearer.auth.issuer.endpoint.url"),
        (FOREIGN, {"bearer.auth.credentials.source": "CUSTOM"}, "is not supported"),
        (FOREIGN, {"schema.registry.basic.auth.user": "a:S3CRET"}, "did you mean schema.registry.basic.auth.user.info"),
        (FOREIGN, {"schema.registry.ssl.ca.locaton": "x"}, "did you mean schema.registry.ssl.ca.location"),
        ("ftp://u:S3CRET@h", {}, "is no URL"),
        ("h:9644", {}, "is no URL"),
        (None, {}, "schema.registry.url is missing"),
    ],
    ids=range(14),
)
def test_what_is_not_valid_is_refused_without_a_secret(url, properties, words):
    with pytest.raises(Rejected) as refused:
        registry_access(url, properties, BROKERS, "b1.example:9092")
    assert words in refused.value.message
    assert "S3CRET" not in refused.value.message
    assert WORD not in refused.value.message


def test_a_login_crosses_no_network_in_clear():
    access = registry_access("http://registry.example", {"basic.auth.user.info": "bob:S3CRET"})
    with pytest.raises(Rejected, match="would cross it in clear"):
        ask(access, "GET", "/subjects")


def test_a_redirect_is_not_followed_and_gets_no_login():
    with served({"/subjects": (200, [], {})}) as (other, elsewhere):
        moved = {"/subjects": (302, {}, {"Location": f"http://localhost:{other}/subjects"})}
        with served(moved) as (port, asked):
            access = registry_access(f"http://127.0.0.1:{port}", {"basic.auth.user.info": "bob:pw"})
            with pytest.raises(RegistryRefused, match=f"points to localhost:{other}, which is not followed"):
                ask(access, "GET", "/subjects")
    assert "Authorization" in asked[0][1]
    assert elsewhere == []


def test_a_proxy_of_the_environment_gets_no_login_for_this_machine(monkeypatch):
    with served({}) as (proxy, passed), served({"/subjects": (200, [], {})}) as (port, _):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy}")
        assert ask(registry_access(f"http://127.0.0.1:{port}", {}, BROKERS), "GET", "/subjects") == []
    assert passed == []


def tls_server(path, authorities=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    if authorities is not None:
        context.load_verify_locations(authorities)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_https_has_a_trust_store_and_a_certificate_of_its_own(tmp_path):
    key = certificates.write(tmp_path, "localhost", hosts=certificates.HOSTS)
    client, ca = certificates.write(tmp_path, "svc-registry"), str(tmp_path / "ca.pem")
    with served({"/subjects": (200, [], {})}, tls_server(key, ca)) as (port, asked):
        url = f"https://localhost:{port}"
        own = {"schema.registry.ssl.ca.location": ca, "schema.registry.ssl.keystore.location": str(client)}
        assert ask(registry_access(url, own), "GET", "/subjects") == []
        with pytest.raises(Rejected, match="its certificate is not taken"):
            ask(registry_access(url, {}), "GET", "/subjects", tries=1000)
        with pytest.raises(Unavailable, match="its certificate is not taken"):  # and says nothing of a record
            RegistrySchemas({"url": url}).by_id(1)
        brokers = read_security(
            {"security.protocol": "SSL", "ssl.ca.location": ca, "ssl.keystore.location": str(client)}
        )
        assert ask(registry_access(url, {}, brokers), "GET", "/subjects") == []
        conf = {"url": url, "ssl.ca.location": ca, "ssl.keystore.location": str(client), "max.retries": 2}
        with pytest.raises(Rejected, match="has no subject orders-value"):
            RegistrySchemas(conf).latest("orders-value")
    foreign = registry_access(FOREIGN, {}, brokers, "b1.example:9092").places[0].security
    assert foreign.tls.truststore_location == ca
    assert foreign.tls.keystore_location == ""
    assert len(asked) == 3


def test_a_get_is_asked_again_and_of_the_next_url(monkeypatch):
    waits = []
    monkeypatch.setattr(schema_registry.time, "sleep", waits.append)
    answers = {"/subjects": (503, {}, {})}
    with served(answers) as (port, asked), served({"/subjects": (200, ["a"], {})}) as (other, _):
        at = f"http://127.0.0.1:{port}"
        assert ask(registry_access(f"{at},http://127.0.0.1:{other}", {}), "GET", "/subjects") == ["a"]
        with pytest.raises(RegistryRefused):
            ask(registry_access(at, {}), "GET", "/subjects", tries=3)
        assert len(asked) == 4
        with pytest.raises(RegistryRefused):
            ask(registry_access(at, {}), "GET", "/nothing", tries=3)
        assert len(asked) == 5
    assert len(waits) == 2

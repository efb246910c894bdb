"""HTTP and the schema registry act as the caller: passwords, tokens, certificates, and the rights of each route."""

import asyncio
import base64
import json
import ssl
import urllib.error
import urllib.request

import confluent_kafka as ck
import pytest

import certificates
from issuer import Issuer, ec_key, token
from millstream.admin.endpoints import ROUTES
from millstream.cli.__main__ import main
from millstream.model.access import Operation, ResourceType
from millstream.testing.process import Broker
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PASSWORDS = {"admin": "admin-word-2207", "reader": "reader-word-4411", "nothing": "nothing-word-9"}
AVRO = json.dumps({"schema": json.dumps({"type": "record", "name": "R", "fields": []})}).encode()


READER = {
    (Operation.READ, ResourceType.TOPIC),
    (Operation.DESCRIBE, ResourceType.TOPIC),
    (Operation.DESCRIBE, ResourceType.CLUSTER),
}
"""What the reader may do, to the topic ``orders`` and to the cluster."""


class Asked:
    """An answer over HTTPS."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body
        self.json = json.loads(body) if body.startswith((b"{", b"[")) else None


class Http:
    """A broker's HTTPS port, asked with a login, a token or a certificate."""

    def __init__(self, broker, ca):
        self.url = json.loads((broker.data_dir / "broker.json").read_text())["http"]
        self.ca = ca

    def __call__(self, path, method="GET", body=None, user="", bearer="", certificate=None, password=None, **headers):
        context = ssl.create_default_context(cafile=self.ca)
        if certificate is not None:
            context.load_cert_chain(certificate)
        if user:
            pair = f"{user}:{password or PASSWORDS[user]}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120, context=context) as answer:
                return Asked(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Asked(error.code, error.headers, error.read())


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keys")
    for name, hosts in (("broker", certificates.HOSTS), ("reader", ()), ("stranger", ())):
        certificates.write(directory, name, hosts=hosts)
    return directory


@pytest.fixture(scope="module")
def broker(keys):
    with Issuer(ec_key()) as issuer:
        settings = issuer.settings(
            **{
                "listener.security.protocol.map": "S:SASL_SSL",
                "ssl.keystore.location": keys / "broker.pem",
                "ssl.truststore.location": keys / "ca.pem",
                "http.security.protocol": "SSL",
                "listener.name.http.ssl.client.auth": "requested",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
                "super.users": "User:admin",
                "connection.failed.authentication.delay.ms": 10,
            }
        )
        with Broker(None, settings, listen="S://127.0.0.1:0", shards=1) as started:
            prepare(started)
            yield started


@pytest.fixture(scope="module")
def http(broker, keys):
    return Http(broker, keys / "ca.pem")


def prepare(broker):
    """Users, a topic and rights, through the socket file."""
    at = ["--data", str(broker.data_dir)]
    for user, word in PASSWORDS.items():
        file = broker.data_dir.parent / f"{broker.data_dir.name}.word"
        file.write_text(word)
        assert main(["user", "create", user, "--password-file", str(file), *at]) == 0
        file.unlink()
    for principal in ("User:reader", "User:svc-orders"):
        assert main(["acl", "create", principal, "read", "--topic", "orders", *at]) == 0
        assert main(["acl", "create", principal, "describe", "--cluster", *at]) == 0
    assert main(["acl", "create", "User:svc-orders", "write", "--topic", "orders", *at]) == 0


def test_probes_and_scrapers_need_no_login(http):
    assert http("/healthz").status == 200
    assert b"kafka_logins" in http("/metrics").body


def test_every_other_route_needs_a_login_and_its_right(http):
    assert len(ROUTES) > 15
    for route in ROUTES:
        path = route.path.replace("{topic}", "orders")
        body = json.dumps(route.example or {}).encode() if route.method in ("POST", "PUT") else None
        if route.needs is None:
            continue
        without = http(path, route.method, body)
        assert (without.status, without.json["error"]) == (401, "UNAUTHORIZED"), path
        assert without.headers["WWW-Authenticate"].startswith("Basic ")
        assert http(path, route.method, body, user="nothing").status == 403, path
        allowed = http(path, route.method, body, user="reader").status
        has = (route.needs.operation, route.needs.resource) in READER
        assert (allowed != 403) == has, (path, allowed)


@pytest.mark.parametrize(
    "how",
    [
        {"user": "reader"},
        {"bearer": token()},
        {"certificate": "reader"},
    ],
)
def test_a_caller_proves_who_it_is_in_three_ways(http, keys, how):
    if "certificate" in how:
        how = {"certificate": keys / "reader.pem"}
    assert http("/v1/cluster", **how).json["controller"] is not None
    refused = http("/v1/cluster", "POST", b"{}", **how)
    assert (refused.status, refused.json["error"]) == (403, "CLUSTER_AUTHORIZATION_FAILED")
    assert "needs ALTER on the cluster" in refused.json["message"]


@pytest.mark.parametrize(
    "how",
    [
        {"user": "reader", "password": "guess"},
        {"user": "nobody", "password": "guess"},
        {"bearer": token(iss="x")},
        {"bearer": "a.b.c"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic " + base64.b64encode(b"reader").decode()},
        {"Authorization": "Digest x"},
        {"Authorization": "Bearer " + "x" * 30_000},
    ],
)
def test_a_wrong_proof_is_refused(http, how):
    answer = http("/v1/cluster", **how)
    assert (answer.status, answer.json["error"]) == (401, "UNAUTHORIZED")


def test_a_login_wins_over_a_certificate(http, keys):
    assert http("/v1/cluster", certificate=keys / "stranger.pem").status == 403
    assert http("/v1/cluster", certificate=keys / "stranger.pem", user="reader").status == 200
    assert http("/v1/cluster", certificate=keys / "reader.pem", user="nothing").status == 403


def test_the_registry_of_a_broker_without_a_clear_listener_acts_as_the_caller(http):
    registered = http("/subjects/orders-value/versions", "POST", AVRO, bearer=token())
    assert (registered.status, registered.json["version"]) == (200, 1)
    schema = f"/schemas/ids/{registered.json['id']}"
    for how in ({"user": "reader"}, {"user": "admin"}):
        assert http("/subjects/orders-value/versions/latest", **how).json["version"] == 1
        assert http(schema, **how).status == 200
    assert http("/schemas/ids/4000", user="reader").status == 404
    for method, path, body in (
        ("GET", "/subjects/orders-value/versions/latest", None),
        ("GET", schema, None),
        ("GET", f"{schema}/subjects?subject=:.x:&limit=0", None),
        ("GET", "/subjects", None),
    ):
        answer = http(path, method, body, user="nothing")
        assert answer.status in (403, 404), path
        assert "orders-value" not in answer.body.decode(), path
        assert http(path, method, body).status in (401, 403, 404), path
    for method, path, body in (
        ("POST", "/subjects/orders-value/versions", AVRO),
        ("DELETE", "/subjects/orders-value", None),
        ("PUT", "/config", b'{"compatibility":"NONE"}'),
        ("PUT", "/mode/orders-value", b'{"mode":"READONLY"}'),
    ):
        answer = http(path, method, body, user="reader")
        assert (answer.status, answer.json["error_code"]) == (403, 403), path
        assert http(path, method, body).status == 401, path
    assert http("/subjects", user="admin").json == ["orders-value"]


def test_commands_log_in_over_https(broker, http, keys, tmp_path, capfd):
    at = json.loads((broker.data_dir / "broker.json").read_text())["bootstrap"]
    (tmp_path / "p").write_text(
        f"security.protocol=SASL_SSL\nssl.ca.location={keys / 'ca.pem'}\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.username=admin\nsasl.password={PASSWORDS['admin']}\n"
    )
    config = ["--command-config", str(tmp_path / "p")]
    assert http("/subjects/orders-value/versions", "POST", AVRO, user="admin").status == 200
    assert main(["cluster", "health", "--bootstrap", at, *config]) == 0
    assert main(["schema", "list", "--registry", http.url, *config]) == 0
    assert "orders-value" in capfd.readouterr().out


def test_stock_clients_log_in_by_a_password_over_tls(broker, keys):
    import aiokafka
    import kafka

    login = {"user": "admin", "password": PASSWORDS["admin"]}
    producer = ck.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(keys / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": login["user"],
            "sasl.password": login["password"],
        }
    )
    producer.produce("by-password", b"ck")
    assert producer.flush(120) == 0
    options = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=keys / "ca.pem"),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": login["user"],
        "sasl_plain_password": login["password"],
    }
    other = kafka.KafkaProducer(**options)
    assert other.send("by-password", b"kp").get(120).offset >= 0
    other.close()

    async def send():
        third = aiokafka.AIOKafkaProducer(**options)
        await third.start()
        try:
            return await third.send_and_wait("by-password", b"aio")
        finally:
            await third.stop()

    assert asyncio.run(send()).offset >= 0


def test_no_secret_is_in_the_log(broker, http):
    assert http("/v1/cluster", user="reader", password="guess").status == 401
    until(lambda: b"over HTTP failed" in broker.log_path.read_bytes(), "the failed login in the log")
    text = broker.log_path.read_bytes()
    assert not [word for word in (*PASSWORDS.values(), "guess") if word.encode() in text]

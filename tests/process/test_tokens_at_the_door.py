"""Logins with JSON web tokens on a real broker: stock clients, sessions that end with the token, keys that change."""

import asyncio
import json
import os
import ssl
import time
from contextlib import ExitStack, closing

import confluent_kafka as ck
import pytest

import certificates
from issuer import Issuer, claims, ec_key, key_set, rsa_key, sign, token
from millstream.client.cluster import Cluster
from millstream.client.security import read_security
from millstream.errors import Rejected
from millstream.events import EventsClient
from millstream.testing.process import Broker
from millstream.testing.stem import run_command
from millstream.wire.bearer import GIVE_UP, REFUSAL, bearer_first
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest
from raw_line import Line
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
USER = "svc-orders"


@pytest.fixture
def command(tmp_path):
    """``command(words…)``: what it printed."""

    def run(*words):
        done = run_command(*words, env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def issuer():
    with Issuer(ec_key(), rsa_key()) as running:
        yield running


@pytest.fixture(scope="module")
def broker(issuer, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys")
    settings = issuer.settings(
        **{
            "listener.security.protocol.map": "A:PLAINTEXT,S:SASL_PLAINTEXT,T:SASL_SSL",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.t.ssl.keystore.location": str(certificates.write(keys, "broker", hosts=certificates.HOSTS)),
            "connection.failed.authentication.delay.ms": 20,
            "super.users": f"User:{USER};User:ANONYMOUS",
        }
    )
    listen = ",".join(f"{name}://127.0.0.1:0" for name in "AST")
    with Broker(["t"], settings, listen=listen, shards=1) as started:
        about = json.loads((started.data_dir / "broker.json").read_text())
        started.at = about["listeners"]
        started.ca = keys / "ca.pem"
        yield started


# Stock clients


class Count:
    """librdkafka's callback for a token."""

    def __init__(self, lifetime_s):
        self.lifetime_s = lifetime_s
        self.calls = 0

    def __call__(self, _):
        self.calls += 1
        return token(lifetime_s=self.lifetime_s), time.time() + self.lifetime_s


def test_librdkafka_produces_over_tls_and_renews_its_token(broker):
    tokens = Count(5)
    producer = ck.Producer(
        {
            "bootstrap.servers": broker.at["T"],
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(broker.ca),
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": tokens,
        }
    )
    sent = 0
    while tokens.calls < 3:
        producer.produce("t", b"x")
        assert producer.flush(60) == 0
        sent += 1
    assert sent >= 3


def test_kafka_python_and_aiokafka_log_in(broker):
    import aiokafka
    import kafka
    from aiokafka.abc import AbstractTokenProvider as OfAio
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def token(self):
            return token()

    class AioProvider(OfAio):
        async def token(self):
            return token(key=rsa_key())

    options = {
        "bootstrap_servers": broker.at["T"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
    }
    producer = kafka.KafkaProducer(**options, ssl_cafile=str(broker.ca), sasl_oauth_token_provider=Provider())
    assert producer.send("t", b"kp").get(60).offset >= 0
    producer.close()

    async def send():
        context = ssl.create_default_context(cafile=str(broker.ca))
        other = aiokafka.AIOKafkaProducer(**options, ssl_context=context, sasl_oauth_token_provider=AioProvider())
        await other.start()
        try:
            return await other.send_and_wait("t", b"aio")
        finally:
            await other.stop()

    assert asyncio.run(send()).offset >= 0


# Clients of ours


def ours(broker, issuer, **changed):
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.oauthbearer.client.credentials.client.id": USER,
        "sasl.oauthbearer.client.credentials.client.secret": issuer.clients[USER],
    }
    return read_security(given | changed)


def test_our_clients_get_a_token_by_their_own_credentials(broker, issuer):
    for security in (ours(broker, issuer), ours(broker, issuer, **{"sasl.oauthbearer.token": token()})):
        with Cluster(broker.at["S"], security=security) as cluster:
            assert cluster.metadata([]).brokers
        with EventsClient(broker.at["S"], security=security) as client:
            assert not client.topic_exists("none")


def test_commands_log_in_with_a_token_in_a_file(broker, issuer, command, tmp_path):
    (tmp_path / "token").write_text(token())
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url=file://{tmp_path}/token\n"
    )
    listed = command("topic", "list", "--bootstrap", broker.at["S"], "--command-config", str(properties))
    assert "t" in listed


def test_a_token_that_is_not_taken_is_said(broker, issuer):
    old = sign(claims(exp=time.time() - 5))
    with (
        Cluster(broker.at["S"], security=ours(broker, issuer, **{"sasl.oauthbearer.token": old})) as cluster,
        pytest.raises(Rejected) as failure,
    ):
        cluster.metadata([])
    assert "the token is not taken: invalid_token" in failure.value.message
    assert old.split(".")[2].encode() not in broker.log_path.read_bytes()


# The exchange


@pytest.fixture
def line(broker):
    with Line(broker.at["S"]) as made:
        assert made.ask(SaslHandshakeRequest("OAUTHBEARER"), 1).mechanisms == ["OAUTHBEARER"]
        yield made


def authenticate(line, message):
    return line.ask(SaslAuthenticateRequest(message), 2)


def test_a_refusal_is_json_and_then_the_end(line):
    told = authenticate(line, bearer_first(token("other", iss="x")))
    assert (told.error_code, told.auth_bytes) == (0, REFUSAL)
    last = authenticate(line, GIVE_UP)
    assert (last.error_code, last.error_message) == (58, REFUSAL.decode())
    assert line.frame() is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01k1=v\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,," + b"\x01a=" * 9000 + b"\x01\x01",
    ],
)
def test_a_malformed_message_is_the_end(line, message):
    assert authenticate(line, message).error_code == 58
    assert line.frame() is None


def test_a_good_token_under_the_name_of_another_is_the_end(line):
    message = b"n,a=someone,\x01auth=Bearer " + token().encode() + b"\x01\x01"
    assert authenticate(line, message).error_code == 58
    assert line.frame() is None


def test_extensions_and_the_own_name_are_taken(line):
    message = f"n,a={USER},\x01auth=bearer {token()}\x01traceId=a b\x01\x01".encode()
    assert authenticate(line, message).error_code == 0
    assert line.ask(MetadataRequest(topics=[]), 12).cluster_id


# Sessions


def test_a_session_ends_with_its_token_and_may_go_on_with_another(broker):
    with ExitStack() as lines:

        def opened():
            """A line with a session of three seconds, unless this machine took them to log in."""
            line = lines.enter_context(Line(broker.at["S"]))
            assert line.ask(SaslHandshakeRequest("OAUTHBEARER"), 1).error_code == 0
            lifetime_ms = authenticate(line, bearer_first(token(lifetime_s=3))).session_lifetime_ms
            assert lifetime_ms <= 3000
            return lifetime_ms and line

        kept, expired = (until(opened, "each token is over before it is taken") for _ in range(2))

        def is_closed():
            expired.send(MetadataRequest(topics=[]), 12)
            return expired.frame() is None

        until(is_closed, "the end of the session", every_s=0.2)
        assert kept.ask(SaslHandshakeRequest("OAUTHBEARER"), 1).error_code == 0
        assert authenticate(kept, bearer_first(token())).session_lifetime_ms > 3000
        assert kept.ask(MetadataRequest(topics=[]), 12).cluster_id


# Keys


def test_a_new_key_is_asked_for_and_loses_no_login(broker, issuer):
    until(lambda: b"keys of tokens" in broker.log_path.read_bytes(), "the first keys")
    fresh = ec_key(5)
    issuer.document = key_set(*issuer.keys, fresh)
    with Line(broker.at["S"]) as line:
        assert line.ask(SaslHandshakeRequest("OAUTHBEARER"), 1).error_code == 0
        assert authenticate(line, bearer_first(token(key=fresh))).auth_bytes == b""
    asked = len(issuer.asked)
    for number in (6, 7):
        with closing(Line(broker.at["S"]).sock) as sock:
            line = Line.__new__(Line)
            line.sock, line.number = sock, 0
            assert line.ask(SaslHandshakeRequest("OAUTHBEARER"), 1).error_code == 0
            assert authenticate(line, bearer_first(token(key=ec_key(number)))).auth_bytes == REFUSAL
    assert len(issuer.asked) == asked

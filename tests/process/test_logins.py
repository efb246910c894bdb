"""Logins by SASL on a real broker: stock clients, the order of requests, bad and slow clients, a guard that dies."""

import asyncio
import json
import os
import signal
import struct
import time
from contextlib import closing

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

import raw_line
from millstream.testing.process import Broker
from millstream.wire.apis import APIS
from millstream.wire.frames import request_frame
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest
from millstream.wire.sasl import (
    SCRAM_SHA_256,
    client_final,
    client_first,
    plain_token,
    read_server_first,
    salted_password,
)
from raw_line import Line
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PASSWORDS = {"alice": "wonder-land-1865", "bob": "b,o=b\u00e9-7331"}
SHORTEST = {"u": "p"}
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
LOGIN = "S"


@pytest.fixture(scope="module")
def broker():
    settings = {
        "listener.security.protocol.map": f"A:PLAINTEXT,{LOGIN}:SASL_PLAINTEXT",
        "listener.name.s.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connection.failed.authentication.delay.ms": 20,
        "sasl.server.max.receive.size": 4096,
        "allow.everyone.if.no.acl.found": "true",
    }
    with Broker(["t"], settings, listen=f"A://127.0.0.1:0,{LOGIN}://127.0.0.1:0", shards=1) as started:
        create_users(started)
        yield started


def create_users(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for user, mechanism in (
        ("u", "SHA_256"),
        ("alice", "SHA_256"),
        ("bob", "SHA_512"),
        ("alice", "SHA_512"),
        ("bob", "SHA_256"),
    ):
        info = ScramCredentialInfo(getattr(ScramMechanism, f"SCRAM_{mechanism}"), 4096)
        wanted = [UserScramCredentialUpsertion(user, info, (PASSWORDS | SHORTEST)[user].encode())]
        for future in admin.alter_user_scram_credentials(wanted).values():
            future.result(60)


def where(broker):
    about = json.loads((broker.data_dir / "broker.json").read_text())
    return about["listeners"][LOGIN]


def client(broker, user, mechanism, password=None, **more):
    return {
        "bootstrap.servers": where(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": PASSWORDS.get(user, "") if password is None else password,
        "log_level": 0,
        **more,
    }


# Stock clients


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_produces_and_consumes(broker, mechanism):
    user = "alice" if mechanism == "SCRAM-SHA-256" else "bob"
    producer = ck.Producer(client(broker, user, mechanism))
    producer.produce("t", mechanism.encode())
    assert producer.flush(60) == 0
    consumer = ck.Consumer(
        client(broker, user, mechanism, **{"group.id": f"g-{mechanism}", "auto.offset.reset": "earliest"})
    )
    with closing(consumer):
        consumer.subscribe(["t"])
        seen = set()

        def arrived():
            message = consumer.poll(1)
            if message is not None and not message.error():
                seen.add(message.value())
            return mechanism.encode() in seen

        until(arrived, "the record that was produced")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_and_aiokafka_log_in(broker, mechanism):
    import aiokafka
    import kafka

    options = {
        "bootstrap_servers": where(broker),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "bob",
        "sasl_plain_password": PASSWORDS["bob"],
    }
    producer = kafka.KafkaProducer(**options)
    assert producer.send("t", b"kp").get(60).offset >= 0
    producer.close()

    async def send():
        other = aiokafka.AIOKafkaProducer(**options)
        await other.start()
        try:
            return await other.send_and_wait("t", b"aio")
        finally:
            await other.stop()

    assert asyncio.run(send()).offset >= 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(broker, mechanism, user):
    errors = []
    producer = ck.Producer(client(broker, user, mechanism, "guess-4711", error_cb=errors.append))
    expected = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"

    def refused():
        producer.poll(0.1)
        return any(expected in error.str() for error in errors)

    until(refused, "the words of the refusal")


# The order of requests


@pytest.fixture
def line(broker):
    made = Line(where(broker))
    yield made
    made.sock.close()


def versions():
    return ApiVersionsRequest("test", "1")


def log_in(line, user="alice", password=None):
    return raw_line.log_in(line, user, password or PASSWORDS[user])


def test_every_other_api_is_closed_without_a_word_before_the_handshake(broker):
    for key, api in APIS.items():
        if key in (17, 18):
            continue
        one = Line(where(broker))
        with closing(one.sock):
            one.sock.sendall(struct.pack(">ihhih", 10, key, api.versions[1], 7, -1))
            assert one.frame() is None, api.name


def test_a_second_api_versions_is_closed_without_a_word(line):
    assert line.ask(versions(), 4).error_code == 0
    line.send(versions(), 4)
    assert line.frame() is None


def test_an_unknown_version_of_api_versions_does_not_count(line):
    line.sock.sendall(struct.pack(">ihhih", 11, 18, 99, 7, -1) + b"\0")
    assert line.frame()[4:6] == (35).to_bytes(2, "big")
    assert line.ask(versions(), 3).error_code == 0
    assert log_in(line).error_code == 0


def test_another_request_in_mid_login_ends_it(line):
    assert line.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    line.send(MetadataRequest(topics=[]), 13)
    assert line.answer(MetadataRequest(), 13).error_code == 34
    assert line.frame() is None


def test_a_mechanism_that_is_not_enabled_is_named_with_those_that_are(line):
    refused = line.ask(SaslHandshakeRequest("GSSAPI"), 1)
    assert (refused.error_code, refused.mechanisms) == (33, list(MECHANISMS))
    assert line.frame() is None


def test_bare_tokens_follow_the_oldest_handshake(line):
    assert line.ask(SaslHandshakeRequest("SCRAM-SHA-256"), 0).error_code == 0
    first = client_first("alice", "bare-nonce")
    challenge = read_server_first(line.bare(first.gs2_header + first.bare), "bare-nonce")
    salted = salted_password(SCRAM_SHA_256, PASSWORDS["alice"], challenge.salt, challenge.iterations)
    assert line.bare(client_final(SCRAM_SHA_256, salted, first, challenge)).startswith(b"v=")
    assert line.ask(MetadataRequest(topics=[]), 12).cluster_id
    other = Line(f"{line.sock.getpeername()[0]}:{line.sock.getpeername()[1]}")
    with closing(other.sock):
        assert other.ask(SaslHandshakeRequest("PLAIN"), 0).error_code == 0
        assert other.bare(plain_token("bob", "wrong-word")) is None
    last = Line(f"{line.sock.getpeername()[0]}:{line.sock.getpeername()[1]}")
    with closing(last.sock):
        assert last.ask(SaslHandshakeRequest("PLAIN"), 0).error_code == 0
        assert last.bare(plain_token("bob", PASSWORDS["bob"])) == b""
        assert last.ask(MetadataRequest(topics=[]), 12).cluster_id


def test_a_bare_token_may_be_shorter_than_a_request(broker):
    for token, answer in ((b"\0u\0p", b""), (b"\0u\0x", None), (b"x", None)):
        with closing(Line(where(broker)).sock) as sock:
            line = Line.__new__(Line)
            line.sock, line.number = sock, 0
            assert line.ask(SaslHandshakeRequest("PLAIN"), 0).error_code == 0
            assert line.bare(token) == answer
            if answer is not None:
                assert line.ask(MetadataRequest(topics=[]), 12).cluster_id
    with closing(Line(where(broker)).sock) as sock:
        line = Line.__new__(Line)
        line.sock, line.number = sock, 0
        assert line.bare(b"x") is None, "before the handshake every frame is a request"


def test_sasl_after_a_login_and_without_one_is_refused_and_the_connection_stays(broker, line):
    assert log_in(line).error_code == 0
    assert line.ask(SaslAuthenticateRequest(b"x"), 2).error_code == 34
    assert line.ask(MetadataRequest(topics=[]), 12).cluster_id
    until(lambda: is_refused_within_a_second(broker), "this machine takes a second for each login")
    plain = Line(broker.bootstrap)
    with closing(plain.sock):
        assert plain.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 34
        assert plain.ask(SaslAuthenticateRequest(b"x"), 2).error_code == 34
        assert plain.ask(MetadataRequest(topics=[]), 12).cluster_id


def is_refused_within_a_second(broker):
    """Whether a handshake came within a second of a login, and so was refused."""
    began = time.monotonic()
    with Line(where(broker)) as line:
        assert log_in(line).error_code == 0
        code = line.ask(SaslHandshakeRequest("PLAIN"), 1).error_code
        assert code == 34 or time.monotonic() - began >= 1
        assert code == 0 or line.ask(MetadataRequest(topics=[]), 12).cluster_id
    return code == 34


def test_a_frame_before_the_login_is_small(line):
    line.sock.sendall(struct.pack(">i", 4097) + b"\0\x11\0\1")
    assert line.frame() is None


def test_a_large_request_passes_after_the_login(line):
    assert log_in(line).error_code == 0
    names = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    padded = request_frame(names, 12, 9, "c" * 20_000)
    line.sock.sendall(padded)
    assert line.frame() is not None


# Sessions


def test_a_session_ends_unless_it_logs_in_again_as_the_same_user(broker):
    lifetime_ms = 5000
    settings = {**broker.settings, "connections.max.reauth.ms": lifetime_ms}
    with Broker(None, settings, listen=f"A://127.0.0.1:0,{LOGIN}://127.0.0.1:0", shards=1) as short:
        create_users(short)
        producer = ck.Producer(client(short, "alice", "SCRAM-SHA-256"))
        producer.produce("again", b"before")
        assert producer.flush(60) == 0
        kept, other, expired = (Line(where(short)) for _ in range(3))
        for one in (kept, other, expired):
            assert log_in(one).session_lifetime_ms == lifetime_ms

        def is_closed():
            expired.send(MetadataRequest(topics=[]), 12)
            return expired.frame() is None

        until(is_closed, "the end of the session", every_s=0.2)
        assert log_in(kept).error_code == 0
        assert kept.ask(MetadataRequest(topics=[]), 12).cluster_id
        assert log_in(other, "bob").error_code == 58
        assert other.frame() is None
        producer.produce("again", b"after")
        assert producer.flush(60) == 0
        for one in (kept, expired, other):
            one.sock.close()


# The guard


def guard_of(broker):
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
            session = os.getsid(pid)
        except OSError:
            continue
        if session == broker.pid:
            assert not any(word.encode() in command for word in PASSWORDS.values())
            if b"guard" in command:
                return pid
    return None


def test_a_guard_that_dies_is_replaced_and_logins_wait(broker):
    pid = guard_of(broker)
    os.kill(pid, signal.SIGKILL)
    with closing(Line(where(broker)).sock) as sock:
        line = Line.__new__(Line)
        line.sock, line.number = sock, 0
        assert line.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
        assert line.ask(SaslAuthenticateRequest(plain_token("bob", PASSWORDS["bob"])), 2).error_code == 0
    assert guard_of(broker) not in (None, pid)


def test_no_secret_is_in_any_log_or_file(broker):
    secrets = [word.encode() for word in (*PASSWORDS.values(), "guess-4711", "wrong-word")]
    line = Line(where(broker))
    with closing(line.sock):
        log_in_wrongly = log_in(line, password="wrong-word")
    assert log_in_wrongly.error_code == 58
    texts = [broker.log_path.read_bytes()]
    texts += [
        path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file() and path.stat().st_size < 1 << 24
    ]
    assert len(texts) > 3
    assert not [secret for secret in secrets for text in texts if secret in text]
    assert b"a login from 127.0.0.1" in texts[0]

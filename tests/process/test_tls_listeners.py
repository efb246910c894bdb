"""TLS listeners under stock clients: data, names, wrong clients, half handshakes, new certificates."""

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import struct
import urllib.error
import urllib.request
import uuid

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import certificates
from millstream.secure.authority import issue
from millstream.testing.process import Broker, BrokerFailed
from waits import moment, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of kafka-python
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keys")
    certificates.write(directory, "broker", hosts=certificates.HOSTS)
    certificates.write(directory, "alice")
    return directory


def settings(keys, **more):
    return {
        "ssl.keystore.location": keys / "broker.pem",
        "ssl.truststore.location": keys / "ca.pem",
        "http.security.protocol": "SSL",
        "allow.everyone.if.no.acl.found": "true",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture(scope="module")
def secure(keys):
    more = settings(keys, ssl_client_auth="requested")
    more["ssl.principal.mapping.rules"] = "RULE:^CN=(.*)$/$1/U"
    with Broker(settings=more, listen="SSL://127.0.0.1:0", shards=1) as broker:
        yield broker


def librdkafka(broker, keys, **more):
    own = {"bootstrap.servers": broker.bootstrap, "security.protocol": "ssl", "ssl.ca.location": str(keys / "ca.pem")}
    return {**own, **more}


def new_topic(broker, keys):
    name = f"topic-{uuid.uuid4().hex[:12]}"
    admin = AdminClient(librdkafka(broker, keys))
    admin.create_topics([NewTopic(name, 1)])[name].result(60)
    return name


def context(keys, who=None):
    found = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    if who is not None:
        found.load_cert_chain(str(keys / f"{who}.pem"))
    return found


def said(broker, words):
    """Wait until the broker's log has these words."""
    until(lambda: words in broker.log_path.read_text(), broker.log_tail)


def test_librdkafka_produces_and_consumes_small_and_large_batches(secure, keys):
    topic = new_topic(secure, keys)
    producer = ck.Producer(librdkafka(secure, keys, **{"linger.ms": 20, "message.max.bytes": 8_000_000}))
    sent = [os.urandom(size) for size in [1, 100, 900_000, 20_000] * 10]
    failed = []
    for value in sent:
        producer.produce(topic, value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(60) == 0
    assert not failed
    found = []
    consumer = ck.Consumer(librdkafka(secure, keys, **{"group.id": topic, "auto.offset.reset": "earliest"}))
    consumer.subscribe([topic])
    while len(found) < len(sent):
        message = consumer.poll(60)
        assert message is not None and message.error() is None
        found.append(message.value())
    consumer.close()
    assert found == sent


def test_kafka_python_produces_and_consumes(secure, keys):
    from kafka import KafkaConsumer, KafkaProducer

    topic = new_topic(secure, keys)
    common = {"bootstrap_servers": secure.bootstrap, "security_protocol": "SSL", "ssl_cafile": str(keys / "ca.pem")}
    producer = KafkaProducer(**common, acks="all")
    for number in range(200):
        producer.send(topic, str(number).encode() * 100)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(topic, **common, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    found = [next(consumer).value for _ in range(200)]
    consumer.close()
    assert found == [str(number).encode() * 100 for number in range(200)]


def test_aiokafka_produces_and_consumes(secure, keys):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic = new_topic(secure, keys)
    common = {"bootstrap_servers": secure.bootstrap, "security_protocol": "SSL", "ssl_context": context(keys)}

    async def both():
        producer = AIOKafkaProducer(**common)
        await producer.start()
        try:
            await asyncio.gather(*[await producer.send(topic, b"%d" % number * 300) for number in range(200)])
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(topic, **common, auto_offset_reset="earliest")
        await consumer.start()
        try:
            return [(await consumer.getone()).value for _ in range(200)]
        finally:
            await consumer.stop()

    assert asyncio.run(both()) == [b"%d" % number * 300 for number in range(200)]


def test_a_connection_that_takes_no_answers_gets_them_all_later(secure, keys):
    """The connection is paused with requests inside the TLS socket, and goes on with them."""
    topic = new_topic(secure, keys)
    producer = ck.Producer(librdkafka(secure, keys))
    for _ in range(8):
        producer.produce(topic, os.urandom(400_000))
    assert producer.flush(60) == 0
    host, _, port = secure.bootstrap.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=60)
    with context(keys).wrap_socket(plain, server_hostname="localhost") as sock:
        sock.sendall(_fetch(topic) * 40)
        moment(0.2)  # the broker's socket is full by now, or soon; either way all answers have to come
        for _ in range(40):
            (size,) = struct.unpack(">i", _exactly(sock, 4))
            assert size > 400_000
            _exactly(sock, size)


def _fetch(topic):
    """Fetch version 4 of one partition from its beginning, 500,000 bytes."""
    name = topic.encode()
    body = struct.pack(">iiiib", -1, 100, 1, 500_000, 0) + struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iiqi", 1, 0, 0, 500_000)
    head = struct.pack(">hhih", 1, 4, 7, 1) + b"c"
    return struct.pack(">i", len(head) + len(body)) + head + body


def _exactly(sock, size):
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece
        data += piece
    return bytes(data)


def test_a_client_without_tls_is_told_in_the_log(secure):
    host, _, port = secure.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        assert sock.recv(10) == b""
    said(secure, "speaks plaintext, and the listener SSL takes TLS only (security.protocol=SSL)")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(10) == b""
    said(secure, "speaks HTTP, and the listener SSL takes TLS only")


def test_a_client_that_does_not_trust_the_broker_is_told_in_the_log(secure):
    host, _, port = secure.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")
    said(secure, "it failed in its TLS handshake: it does not trust the authority of this certificate")


def test_http_speaks_tls_and_says_so_to_those_who_do_not(secure, keys):
    with urllib.request.urlopen(f"{secure.http}/healthz", context=context(keys), timeout=60) as answer:
        assert json.load(answer)["status"] == "ok"
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(secure.http.replace("https:", "http:"), timeout=60)
    assert refusal.value.code == 400
    assert b"HTTPS" in refusal.value.read()
    refusal.value.close()


def test_half_handshakes_keep_nobody_out(keys, tmp_path):
    """They are closed after ten seconds; others connect meanwhile."""
    with Broker(settings=settings(keys), listen="SSL://127.0.0.1:0", shards=1, data_dir=tmp_path / "data") as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        halves = [socket.create_connection((host, int(port)), timeout=60) for _ in range(200)]
        for half in halves[:150]:
            half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a ClientHello
        assert ck.Producer(librdkafka(broker, keys)).list_topics(timeout=60).brokers
        for half in halves:
            assert half.recv(1) == b""
            half.close()
        said(broker, "has not finished its TLS handshake in 10 s")
        with urllib.request.urlopen(f"{broker.http}/metrics", context=context(keys), timeout=60) as answer:
            page = answer.read().decode()
        assert 'millstream_tls_half_handshakes{shard="0"} 0' in page
        assert "millstream_tls_certificate_end 1" in page


def test_mutual_tls_refuses_who_shows_no_certificate(keys, tmp_path):
    more = settings(keys, ssl_client_auth="required")
    with Broker(settings=more, listen="SSL://127.0.0.1:0", shards=1, data_dir=tmp_path / "data") as broker:
        own = str(keys / "alice.pem")
        alice = librdkafka(broker, keys, **{"ssl.certificate.location": own, "ssl.key.location": own})
        assert ck.Producer(alice).list_topics(timeout=60).brokers
        host, _, port = broker.bootstrap.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=60)
        with context(keys).wrap_socket(plain, server_hostname="localhost") as sock, pytest.raises(OSError):
            assert sock.recv(1)
        said(broker, "it shows no certificate, and ssl.client.auth=required")


def test_a_new_certificate_that_ends_soon_is_a_warning(keys, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    certificates.write(own, "broker", hosts=certificates.HOSTS)
    with Broker(settings=settings(own), listen="SSL://127.0.0.1:0", shards=1, data_dir=tmp_path / "data") as broker:
        pair = issue(certificates.authority("Test authority"), "broker", certificates.HOSTS, days=1)
        (own / "broker.pem").write_bytes(pair.key + pair.certificate)
        os.kill(broker.pid, signal.SIGHUP)
        said(broker, "WARN  [supervisor] the certificate of listener SSL ends")


def test_new_certificates_are_used_without_a_lost_connection(keys, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    certificates.write(own, "broker", hosts=certificates.HOSTS)
    with Broker(settings=settings(own), listen="SSL://127.0.0.1:0", shards=2, data_dir=tmp_path / "data") as broker:
        topic = new_topic(broker, own)
        errors = []
        producer = ck.Producer(librdkafka(broker, own, error_cb=errors.append))
        producer.produce(topic, b"before")
        assert producer.flush(60) == 0
        before = _certificate(broker, own)
        whole = (own / "broker.pem").read_bytes()
        (own / "broker.pem").write_bytes(whole.replace(b"MII", b"MIX", 1))
        os.kill(broker.pid, signal.SIGHUP)
        said(broker, "the new TLS key material is not used")
        assert _certificate(broker, own) == before
        certificates.write(own, "broker", hosts=certificates.HOSTS)
        request = urllib.request.Request(
            f"{broker.http}/v1/certificates/reload", b"{}", {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, context=context(own), timeout=60) as answer:
            assert json.load(answer) == {"changed": ["SSL", "HTTP"]}
        until(lambda: _certificate(broker, own) != before)
        assert _http_certificate(broker, own) != before
        producer.produce(topic, b"after")
        assert producer.flush(60) == 0
        assert not errors
        with urllib.request.urlopen(f"{broker.http}/v1/certificates", context=context(own), timeout=60) as answer:
            assert {each["listener"] for each in json.load(answer)["certificates"]} == {"SSL", "HTTP"}


def _certificate(broker, keys):
    host, _, port = broker.bootstrap.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=60)
    with context(keys).wrap_socket(plain, server_hostname="localhost") as sock:
        return sock.getpeercert(binary_form=True)


def _http_certificate(broker, keys):
    connection = http.client.HTTPSConnection(broker.http.removeprefix("https://"), context=context(keys), timeout=60)
    connection.connect()
    try:
        return connection.sock.getpeercert(binary_form=True)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ssl.keystore.location": ""}, "listener SSL: TLS needs a certificate: set ssl.keystore.location"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "/nowhere.pem cannot be read"),
        ({"ssl.truststore.location": "", "ssl.client.auth": "required"}, "set ssl.truststore.location"),
        ({"ssl.principal.mapping.rules": "RULE:(?!x)/$0/"}, "RE2 does not take the pattern"),
        ({"ssl.cipher.suites": "TLS_NO_SUCH"}, "OpenSSL knows none of"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_written(keys, tmp_path, change, words):
    more = {**settings(keys), **change}
    broker = Broker(settings=more, listen="SSL://127.0.0.1:0", shards=1, data_dir=tmp_path / "data")
    with pytest.raises(BrokerFailed) as failure:
        broker.start()
    assert words in str(failure.value)
    assert not (tmp_path / "data" / "wal").exists()

"""A broker with something to see, and a console of it: what the browser's tests and the screenshots look at."""

import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import certificates
from issuer import Issuer, ec_key
from millstream.cli.__main__ import main
from millstream.testing.clusters import Cluster
from millstream.testing.process import Broker
from waits import PATIENCE_S

TOPICS = {
    "orders": 6,
    "payments": 3,
    "shipments": 3,
    "clickstream": 12,
    "inventory-updates": 4,
    "customers": 1,
    "audit.log": 1,
    "fraud-scores": 3,
    "emails": 2,
    "nothing-yet": 1,
}
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


def fill(b: Broker) -> None:
    """Records, groups, a schema-less mixture of payloads, and an open transaction."""
    chance = random.Random(4)
    producer = Producer({**b.client, "linger.ms": 5})
    now = int(time.time() * 1000)
    for number in range(2000):
        order = {
            "id": f"o-{10_000 + number}",
            "total": round(chance.random() * 400, 2),
            "currency": chance.choice(["EUR", "USD", "JPY"]),
            "items": [{"sku": f"a-{chance.randint(1, 99)}", "count": chance.randint(1, 4)}],
        }
        city = chance.choice(["Lisbon", "Oslo", "Zürich", "Kraków", "Nairobi", "Kyoto"])
        document = {"order": order, "city": city, "state": chance.choice(["paid", "sent", "open"])}
        producer.produce(
            "orders",
            json.dumps(document, ensure_ascii=False),
            key=f"{chance.choice(['eu', 'us', 'ap'])}-{chance.randint(1000, 9999)}",
            headers=[("trace", f"{chance.getrandbits(64):016x}"), ("source", "shop")],
            timestamp=now - (2000 - number) * 900,
        )
    for number in range(300):
        producer.produce("clickstream", f"GET /shop/item/{number} 200", key=str(number % 37))
        producer.produce("fraud-scores", chance.randbytes(40), key=f"o-{10_000 + number}")
    for number in range(60):
        value = None if number % 7 == 3 else json.dumps({"name": f"Customer {number}", "vip": number % 5 == 0})
        producer.produce("customers", value, key=f"c-{number}")
    producer.produce("emails", HOSTILE, key=HOSTILE, headers=[(HOSTILE, HOSTILE)])
    producer.flush()
    _transactions(b)
    _schemas(b)
    _tiers(b)
    for group, part, topic in (
        ("billing", 0.6, "orders"),
        ("warehouse", 0.95, "orders"),
        ("analytics", 0.1, "orders"),
        ("search-index", 0.5, "clickstream"),
        (f"mailer {HOSTILE}", 1.0, "emails"),
    ):
        consumer = Consumer({**b.client, "group.id": group})
        places = [TopicPartition(topic, partition) for partition in range(TOPICS[topic])]
        for place in places:
            place.offset = int(consumer.get_watermark_offsets(place)[1] * part)
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()


def _schemas(b: Broker) -> None:
    fields = [{"name": "id", "type": "string"}, {"name": "total", "type": "double"}]
    for more in ([], [{"name": "currency", "type": "string", "default": "EUR"}]):
        schema = json.dumps({"type": "record", "name": "Order", "fields": fields + more})
        body = json.dumps({"schema": schema}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{b.http}/subjects/orders-value/versions", body, headers)
        urllib.request.urlopen(request, timeout=60).close()


def _tiers(b: Broker) -> None:
    """A topic in the object store."""
    configs = {"storage.mode": "tiered", "internal.segment.bytes": "20000"}
    topic = NewTopic("payments-archive", num_partitions=2, replication_factor=1, config=configs)
    administrator = AdminClient(b.client)
    for future in administrator.create_topics([topic]).values():
        future.result()
    producer = Producer(b.client)
    for number in range(200):
        producer.produce("payments-archive", random.Random(number).randbytes(400), key=str(number))
    producer.flush()


def _transactions(b: Broker) -> None:
    writer = Producer({**b.client, "transactional.id": "billing-7"})
    writer.init_transactions()
    for turn in range(4):
        writer.begin_transaction()
        for number in range(5):
            writer.produce(
                "payments", json.dumps({"payment": turn * 10 + number, "amount": number * 3}), key=f"p-{number}"
            )
        writer.flush()
        (writer.abort_transaction if turn == 2 else writer.commit_transaction)()


SETTINGS = {"audit.log": "on"}
WORDS = {"admin": "admin-word-2207", "reader": "reader-word-4411"}


@contextmanager
def closed() -> Iterator[tuple[Broker, dict[str, str]]]:
    """A broker that controls access, with the topic ``orders`` and the passwords of its users."""
    settings = {
        "listener.security.protocol.map": "S:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "super.users": "User:admin",
        "connection.failed.authentication.delay.ms": 10,
    }
    with Broker(None, settings, listen="S://127.0.0.1:0", shards=1) as b, tempfile.TemporaryDirectory() as directory:
        at, file = ["--data", str(b.data_dir)], f"{directory}/word"
        for user, word in WORDS.items():
            Path(file).write_text(word)
            assert main(["user", "create", user, "--password-file", file, *at]) == 0
        assert main(["acl", "create", "User:reader", "read", "--topic", "orders", *at]) == 0
        yield b, WORDS


class Secured(NamedTuple):
    """Three brokers with TLS, logins, tokens and rights; their keys, and the passwords of their users."""

    brokers: list[Broker]
    keys: Path
    words: dict[str, str]
    client: dict[str, Any]
    """A client's settings as the user ``admin``."""


@contextmanager
def secured(directory: Path) -> Iterator[Secured]:
    """A cluster whose listeners all demand TLS and a login. The user ``reader`` may read ``orders``; the certificate
    ``carol`` and the token of ``svc-orders``, too. The user ``nobody`` may do nothing.
    """
    keys, peers = directory / "keys", directory / "peers"
    for path in (keys, peers):
        path.mkdir()
    for name, hosts in (("broker", certificates.HOSTS), ("carol", ())):
        certificates.write(keys, name, hosts=hosts)
    certificates.write(peers, "peer", hosts=("127.0.0.1",), by="Authority of brokers")
    with Issuer(ec_key()) as issuer:
        settings = issuer.settings(
            **{
                "listener.security.protocol.map": "S:SASL_SSL",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
                "peer.security.protocol": "SSL",
                "listener.name.peer.ssl.keystore.location": peers / "peer.pem",
                "listener.name.peer.ssl.truststore.location": peers / "ca.pem",
                "ssl.keystore.location": keys / "broker.pem",
                "ssl.truststore.location": keys / "ca.pem",
                "http.security.protocol": "SSL",
                "listener.name.http.ssl.client.auth": "requested",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
                "super.users": "User:admin",
                "connection.failed.authentication.delay.ms": 10,
                "audit.log": "on",
            }
        )
        cluster = Cluster(3, directory, settings, shards=1, memory="128MiB")
        for broker in cluster.brokers.values():
            broker._listen = "S://127.0.0.1:0"
        try:
            cluster.start()
            brokers = list(cluster.brokers.values())
            at, word = ["--data", str(brokers[0].data_dir)], directory / "word"
            words = {**WORDS, "nobody": "nobody-word-9"}
            for user, text in words.items():
                word.write_text(text)
                assert main(["user", "create", user, "--password-file", str(word), *at]) == 0
            for principal in ("User:reader", "User:carol", "User:svc-orders"):
                assert main(["acl", "create", principal, "read", "--topic", "orders", *at]) == 0
            client = {
                "bootstrap.servers": cluster.bootstrap,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "admin",
                "sasl.password": words["admin"],
                "ssl.ca.location": str(keys / "ca.pem"),
                "log_level": 0,
            }
            topics = [NewTopic("orders", 3, 3), NewTopic("secrets", 1, 3)]
            administrator = AdminClient(client)
            for future in administrator.create_topics(topics).values():
                future.result(60)
            producer = Producer(client)
            for number in range(30):
                producer.produce("orders", f"order {number}")
                producer.produce("secrets", f"secret {number}")
            assert producer.flush(60) == 0
            yield Secured(brokers, keys, words, client)
        finally:
            cluster.close()


@contextmanager
def shown(*, alone: bool = False) -> Iterator[tuple[Broker, str]]:
    """A filled broker, and the address of its console, or of one that runs ``alone``."""
    with Broker(TOPICS, SETTINGS) as b:
        fill(b)
        if not alone:
            yield b, f"{b.http}/console"
            return
        command = [sys.executable, "-m", "millstream.cli", "console", "--bootstrap", b.bootstrap, "--registry", b.http]
        process: Any = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        try:
            ready = process.stderr.readline()
            assert " is at http://" in ready, ready
            yield b, ready.split(" is at ")[1].strip().rstrip("/")
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)

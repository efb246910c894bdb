"""A running cluster is moved from clear listeners to TLS, logins and rights, broker by broker (docs/security.md)."""

import json
import os
import signal
import threading

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import certificates
from millstream.cli.__main__ import main
from millstream.client.schema_registry import RegistryRefused, ask, registry_access
from millstream.client.security import read_security
from millstream.config.ports import free_ports
from millstream.testing.clusters import Cluster
from waits import Patience, until

pytestmark = [pytest.mark.process, pytest.mark.ci, pytest.mark.timeout(900)]

NODES = (1, 2, 3)
WORDS = {"admin": "admin-word-2207", "writer": "writer-word-4411", "nobody": "nobody-word-9"}
PEERS = "Authority of brokers"
RENEWALS = 5
RENEWED = "listener SAFE has new TLS key material"


class Load:
    """One client that writes until it is stopped, and what was acknowledged."""

    def __init__(self, first, **conf):
        self.acknowledged, self.failed = set(), []
        self._producer = ck.Producer({"enable.idempotence": True, "linger.ms": 5, "log_level": 0, **conf})
        self._next, self._stopping = first, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stopping.is_set():
            try:
                self._producer.produce("t", b"%d" % self._next, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)
                continue
            self._next += 1
            self._producer.poll(0.002)

    def _delivered(self, error, message):
        if error is None:
            self.acknowledged.add(int(message.value()))
        else:
            self.failed.append(error)

    def goes_on(self):
        """Wait for further acknowledgements."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > before + 20, lambda: f"acknowledged {len(self.acknowledged)}")

    def stop(self):
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(240) == 0
        assert not self.failed


class Moving:
    """A cluster of three whose brokers are restarted one by one with other settings."""

    def __init__(self, directory):
        self.keys = directory / "keys"
        self.keys.mkdir()
        self.renew()
        peers = directory / "peers"
        peers.mkdir()
        certificates.write(peers, "peer", hosts=("127.0.0.1",), by=PEERS)
        settings = {
            "peer.security.protocol": "SSL",
            "listener.name.peer.ssl.keystore.location": peers / "peer.pem",
            "listener.name.peer.ssl.truststore.location": peers / "ca.pem",
            "listener.security.protocol.map": "CLEAR:PLAINTEXT,SAFE:SASL_SSL",
            "connection.failed.authentication.delay.ms": 10,
        }
        self.cluster = Cluster(3, directory, settings, shards=1, memory="128MiB")
        ports = iter(free_ports(6))
        self.clear, self.safe = ({node: f"127.0.0.1:{next(ports)}" for node in NODES} for _ in range(2))
        for node in NODES:
            self.listen(node, "CLEAR")
        self.cluster.start()

    def renew(self):
        certificates.write(self.keys, "broker", hosts=certificates.HOSTS)

    def listen(self, node, *names):
        address = {"CLEAR": self.clear, "SAFE": self.safe}
        self.cluster.brokers[node]._listen = ",".join(f"{name}://{address[name][node]}" for name in names)

    def roll(self, load, names, settings, client):
        """Restart each broker with listeners and settings, when all replicas are in sync."""
        admin = AdminClient({**client, "log_level": 0})
        for node in NODES:
            broker = self.cluster.brokers[node]
            broker.stop()
            broker.settings = {**broker.settings, **settings}
            self.listen(node, *names)
            broker.start()
            load.goes_on()
            until(lambda: in_sync(admin), "replicas in sync")

    def login(self, user):
        return {
            "bootstrap.servers": ",".join(self.safe.values()),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": WORDS[user],
            "ssl.ca.location": str(self.keys / "ca.pem"),
        }


def in_sync(admin):
    try:
        found = admin.list_topics("t", timeout=60).topics["t"].partitions.values()
    except ck.KafkaException:
        return False
    return all(len(partition.isrs) == 3 for partition in found)


@pytest.fixture
def moving(tmp_path):
    made = Moving(tmp_path)
    try:
        yield made
    finally:
        made.cluster.close()


def test_a_cluster_becomes_secure_under_load_and_loses_no_acknowledgement(moving, tmp_path):
    clear = {"bootstrap.servers": ",".join(moving.clear.values())}
    admin = AdminClient({**clear, "log_level": 0})
    admin.create_topics([NewTopic("t", 3, 3)])["t"].result(60)
    load = Load(0, **clear)
    load.goes_on()
    both = {"ssl.keystore.location": moving.keys / "broker.pem", "super.users": "User:ANONYMOUS;User:admin"}
    moving.roll(load, ("CLEAR", "SAFE"), both, clear)
    at = ["--data", str(moving.cluster.brokers[1].data_dir)]
    for user, word in WORDS.items():
        (tmp_path / "word").write_text(word)
        assert main(["user", "create", user, "--password-file", str(tmp_path / "word"), *at]) == 0
    assert main(["acl", "create", "User:writer", "read", "write", "--topic", "t", *at]) == 0
    assert main(["acl", "create", "User:writer", "read", "--group", "g", *at]) == 0
    load.stop()
    safe = Load(1_000_000, **moving.login("writer"))
    safe.goes_on()
    for number in range(RENEWALS):
        moving.renew()
        for broker in moving.cluster.brokers.values():
            os.kill(broker.pid, signal.SIGHUP)
        for broker in moving.cluster.brokers.values():
            until(lambda b=broker, n=number: b.log_path.read_text().count(RENEWED) > n, broker.log_tail)
        assert ck.Producer(moving.login("writer")).list_topics("t", timeout=60).topics["t"].partitions
        safe.goes_on()
    secured = {"super.users": "User:admin", "http.security.protocol": "SSL"}
    moving.roll(safe, ("SAFE",), secured, moving.login("admin"))
    safe.stop()
    consumer = ck.Consumer({**moving.login("writer"), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    wanted, found, patience = load.acknowledged | safe.acknowledged, [], Patience()
    while not set(found) >= wanted:
        patience.check(f"{len(found)} of {len(wanted)}")
        found += [int(message.value()) for message in consumer.consume(500, 1) if message.error() is None]
    consumer.close()
    assert len(found) == len(set(found))
    refused = AdminClient(moving.login("nobody")).list_topics("t", timeout=60).topics["t"].error
    assert refused.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    check_registry(moving)


def check_registry(moving):
    """The schema registry of a cluster whose listeners all demand TLS and a login."""
    schema = {"schema": json.dumps({"type": "record", "name": "T", "fields": [{"name": "id", "type": "long"}]})}
    places = [broker.http for broker in moving.cluster.brokers.values()]

    def at(url, user):
        login = {name: text for name, text in moving.login(user).items() if name != "bootstrap.servers"}
        return registry_access(url, {}, read_security(login), url.removeprefix("https://"))

    for number, url in enumerate(places):
        made = ask(at(url, "writer"), "POST", "/subjects/t-value/versions", schema)
        assert made["id"] == 1, "every broker's registry has what another one registered"
        assert ask(at(url, "admin"), "GET", "/subjects") == ["t-value"], number
        with pytest.raises(RegistryRefused) as refused:
            ask(at(url, "nobody"), "GET", "/subjects/t-value/versions/latest")
        assert refused.value.status == 403
    leader = AdminClient(moving.login("admin")).list_topics("_schemas", timeout=60).topics["_schemas"]
    moving.cluster.kill(leader.partitions[0].leader)
    left = next(b.http for node, b in moving.cluster.brokers.items() if node != leader.partitions[0].leader)

    def answers():
        try:
            return ask(at(left, "admin"), "GET", "/subjects") == ["t-value"]
        except RegistryRefused:
            return False

    until(answers, "the registry reads from another leader")

"""Three brokers with TLS between them: formed, killed, renewed; and one with the wrong authority."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import certificates
from millstream.testing import cluster
from waits import Patience, until

pytestmark = pytest.mark.process

PEERS = "Authority of brokers"


def settings(directory, by=PEERS):
    directory.mkdir(exist_ok=True)
    certificates.write(directory, "peer", hosts=("127.0.0.1",), by=by)
    return {
        "peer.security.protocol": "SSL",
        "listener.name.peer.ssl.keystore.location": directory / "peer.pem",
        "listener.name.peer.ssl.truststore.location": directory / "ca.pem",
    }


class Load:
    """Records whose acknowledgement is counted."""

    def __init__(self, bootstrap):
        self.producer = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self.failed = []
        self.acknowledged = set()

    def send(self, first, count):
        for number in range(first, first + count):
            self.producer.produce("t", b"%d" % number + b" " * 2000, on_delivery=self.delivered)
            self.producer.poll(0)

    def delivered(self, error, message):
        if error is None:
            self.acknowledged.add(int(message.value()))
        else:
            self.failed.append(error)


def test_a_cluster_lives_with_tls_between_its_brokers_under_kill_and_new_certificates(tmp_path):
    own = settings(tmp_path / "keys")
    with cluster(3, settings=own, shards=2, networks=False) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("t", 6, 3)])["t"].result(60)
        load = Load(brokers.bootstrap)
        load.send(0, 1000)
        brokers.kill(2)
        load.send(1000, 1000)
        brokers.brokers[2].start()
        settings(tmp_path / "keys")
        for broker in brokers.brokers.values():
            os.kill(broker.pid, signal.SIGHUP)
            until(lambda b=broker: "listener PEER has new TLS key material" in b.log_path.read_text(), broker.log_tail)
        brokers.kill(3)
        load.send(2000, 1000)
        brokers.brokers[3].start()
        assert load.producer.flush(240) == 0
        assert not load.failed
        consumer = ck.Consumer(
            {"bootstrap.servers": brokers.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        found, patience = set(), Patience()
        while not found >= load.acknowledged:
            patience.check(f"{len(found)} of {len(load.acknowledged)}")
            found |= {int(message.value()) for message in consumer.consume(500, 1) if message.error() is None}
        consumer.close()
        assert len(found) == 3000


def test_a_broker_with_another_authority_is_refused_in_words(tmp_path):
    own, wrong = settings(tmp_path / "keys"), settings(tmp_path / "other", by="Somebody else")
    with cluster(3, settings=own, shards=1, networks=False) as brokers:
        stranger = brokers.brokers[3]
        stranger.stop()
        stranger.settings = {**stranger.settings, **wrong}
        with ThreadPoolExecutor(1) as starting:
            started = starting.submit(stranger.start)
            until(lambda: "its certificate is not taken" in stranger.log_path.read_text(), stranger.log_tail)
            stranger.kill()
            assert started.exception() is not None  # it never served
        other = brokers.brokers[1]
        until(
            lambda: "refused a connection of another broker: TLS failed" in other.log_path.read_text(), other.log_tail
        )

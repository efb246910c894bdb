"""Brokers with empty directories find each other over real sockets and form one cluster, in processes of their own."""

import os
import select
import socket

import pytest

from millstream.app.forming import join_cluster, says
from millstream.cluster.identity import load_identity, own_identity
from millstream.config.errors import ConfigError
from millstream.config.settings import Settings
from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.peers.accepting import PeerListener
from millstream.shard.process import spawn
from millstream.shard.reactor import Reactor
from millstream.storage.disk import SystemDisk
from millstream.telemetry.metrics import StatsSlab

pytestmark = pytest.mark.process

DISK = SystemDisk()


class Broker:
    """Asks for its cluster in a process of its own, says how that ended, and answers probes from then on."""

    def __init__(self, root, node, listeners, seeds, *, node_id=None):
        self.node = node
        self.data = str(root / str(node))
        os.makedirs(self.data, exist_ok=True)
        self.listener = listeners[node]
        addresses = [f"127.0.0.1:{listeners[each].getsockname()[1]}" for each in seeds]
        self.settings = Settings(
            data_dir=self.data,
            node_id=node if node_id is None else node_id,
            peer_listen=f"127.0.0.1:{self.listener.getsockname()[1]}",
            seeds=",".join(addresses),
        )
        self.start()

    def start(self):
        self.outcome, write_end = os.pipe()
        self.child = spawn(f"broker {self.node}", lambda: self._main(write_end))
        os.close(write_end)

    def _main(self, write_end):
        try:
            identity = own_identity(DISK, self.settings)
            if not identity.cluster_id:
                identity = join_cluster(self.settings, DISK, identity, self.listener)
        except MillstreamError as error:
            os.write(write_end, error.message.encode())
            return 3
        reactor = Reactor(-1, StatsSlab())
        probe = says(self.settings, identity)
        PeerListener(reactor, lambda: probe, lambda *_: False).open(self.listener)
        os.write(write_end, b"serves")
        return reactor.run()

    def wait(self):
        """How it ended: "serves" or the refusal."""
        assert select.select([self.outcome], [], [], 40)[0], "no outcome in time"
        return os.read(self.outcome, 4096).decode()

    def kill(self):
        self.child.kill()
        assert self.child.wait(60) is not None
        os.close(self.outcome)

    @property
    def identity(self):
        return load_identity(DISK, self.data)


@pytest.fixture
def cluster(tmp_path):
    """Makes brokers on listening sockets that exist before any of them, as a supervisor binds before it asks."""
    listeners = {node: socket.create_server(("127.0.0.1", 0)) for node in (1, 2, 3, 4)}
    for each in listeners.values():
        each.setblocking(False)
    made = []

    def broker(node, seeds, **options):
        made.append(Broker(tmp_path, node, listeners, seeds, **options))
        return made[-1]

    broker.listeners = listeners
    yield broker
    for each in made:
        each.kill()
    for each in listeners.values():
        each.close()


def test_three_brokers_form_one_cluster_and_a_fourth_joins_it(cluster):
    seeds = (1, 2, 3)
    brokers = [cluster(node, seeds) for node in seeds]
    assert [broker.wait() for broker in brokers] == ["serves"] * 3
    identities = [broker.identity for broker in brokers]
    first = identities[0]
    assert {each.cluster_id for each in identities} == {first.cluster_id}
    assert {each.founders for each in identities} == {first.founders}
    assert [each.node_id for each in first.founders] == [1, 2, 3]
    assert len({each.incarnation for each in identities}) == 3
    late = cluster(4, seeds)
    assert late.wait() == "serves"
    assert (late.identity.cluster_id, late.identity.founders) == (first.cluster_id, ())


def test_a_founder_that_is_killed_on_the_way_founds_the_same_cluster_when_it_is_back(cluster):
    brokers = [cluster(node, (1, 2, 3)) for node in (1, 2)]
    crashed = cluster(3, (1, 2, 3))
    crashed.kill()
    crashed.start()
    assert [broker.wait() for broker in (*brokers, crashed)] == ["serves"] * 3
    assert len({broker.identity.cluster_id for broker in (*brokers, crashed)}) == 1


def test_of_two_brokers_with_one_id_the_first_to_hear_of_the_other_ends(cluster):
    brokers = [cluster(1, (1, 2)), cluster(2, (1, 2), node_id=1)]
    ended = select.select([each.outcome for each in brokers], [], [], 40)[0]  # it no longer answers the other one
    told = next(each for each in brokers if each.outcome in ended)
    assert "has node id 1, like this broker: give each broker a --node-id of its own" in told.wait()


def test_nothing_is_formed_while_a_seed_is_silent(cluster):
    broker = cluster(1, (1, 2))
    for _ in range(3):
        select.select([cluster.listeners[2]], [], [], 40)
        cluster.listeners[2].accept()[0].close()
    assert broker.identity.cluster_id == ""
    assert not select.select([broker.outcome], [], [], 0)[0]


def settings_of(path, node, **options):
    return Settings(data_dir=str(path), node_id=node, **{"seeds": "b:1", "peer_listen": "127.0.0.1:1"} | options)


def test_a_directory_keeps_its_owner(tmp_path):
    made = own_identity(DISK, settings_of(tmp_path, 7))
    assert own_identity(DISK, settings_of(tmp_path, 7)) == made
    with pytest.raises(Rejected, match="belongs to broker 7, not 8: start it with --node-id 7"):
        own_identity(DISK, settings_of(tmp_path, 8))
    assert own_identity(DISK, Settings(data_dir=str(tmp_path))) is None, "it never became part of a cluster"
    (tmp_path / "identity.json").unlink()
    os.makedirs(tmp_path / "controller" / "log")
    with pytest.raises(Rejected, match="belongs to a single broker"):
        own_identity(DISK, settings_of(tmp_path, 7))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "does not say who this broker is"),
        ('{"version": 2, "node_id": 1, "incarnation": ""}', "has version 2; this release knows version 1"),
        ('{"version": 1, "node_id": 1, "incarnation": "xyz"}', "expected 32 hex digits"),
    ],
)
def test_a_broker_does_not_guess_who_it_is(tmp_path, text, words):
    (tmp_path / "identity.json").write_text(text)
    with pytest.raises(Corruption, match=words):
        own_identity(DISK, settings_of(tmp_path, 1))


def test_a_cluster_s_directory_is_not_served_by_a_single_broker(tmp_path):
    (tmp_path / "identity.json").write_text(
        '{"version": 1, "node_id": 4, "incarnation": "%s", "cluster_id": "abc"}' % ("0" * 32)
    )
    with pytest.raises(Rejected, match="belongs to broker 4 of cluster abc: start it with --seeds"):
        own_identity(DISK, Settings(data_dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": "a:1", "node_id": 1}, "needs peer.listen as well"),
        ({"peer_listen": "a:1", "node_id": 1}, "needs seeds as well"),
        ({"seeds": "a:1", "peer_listen": "0.0.0.0:1", "node_id": 1}, "no broker can connect to 0.0.0.0:1"),
        ({"seeds": "a:1", "peer_listen": "a:1"}, "node.id: is not given"),
        ({"seeds": "a:1,a:1", "peer_listen": "a:1", "node_id": 1}, "different HOST:PORT"),
    ],
)
def test_incomplete_settings_of_a_cluster_are_refused_in_words(options, words):
    with pytest.raises(ConfigError, match=words):
        Settings(**options)

"""The metadata cache: look-ups, events, configurations, leader epochs."""

import pytest
from cluster_world import World

from millstream.cluster.announce import announce
from millstream.cluster.messages import Commit
from millstream.cluster.metadata import MetadataCache, MetadataListener
from millstream.config.settings import Settings
from millstream.core.access.entry import AclEntry
from millstream.core.controller.commands import (
    AclsCreated,
    AclsDeleted,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    ClusterCreated,
    FeatureLevelRaised,
    NodeConfigsChanged,
    PartitionState,
    ReplicaChange,
    ReplicasChanged,
    SecretSet,
    TopicCreated,
    UserRemoved,
    UserSet,
)
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.requests import (
    AddPartitions,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    TopicReference,
)
from millstream.core.controller.state import ControllerState
from millstream.model.access import Operation, PatternType, ResourceType
from millstream.model.cluster import LOST, UNKNOWN
from millstream.wire.sasl import Verifier

SETTINGS = Settings(data_dir="/unused", shards=1, node_id=1)
ID = b"i" * 16
PROFILE = BrokerProfile((ListenerAddress("PLAINTEXT", "h", 9092),), PeerAddress("h", 33145), "", 1, "0.1.0", 1)


def cache_of(*commands):
    state = ControllerState()
    state.apply(ClusterCreated("x", 1))
    for command in commands:
        state.apply(command)
    groups = range(1, state.next_raft_group)
    return MetadataCache(state, dict.fromkeys(groups, 0), SETTINGS)


def created(name, topic_id=ID, group=1, **configs):
    return TopicCreated(name, topic_id, (PartitionState(group, (1,), 1),), configs)


def apply(cache, command, *homes):
    for _ in cache.apply(command, iter(homes)):
        pass


def test_topics_are_found_by_name_and_id_and_listed_in_order():
    cache = cache_of(created("b"), created("a", b"j" * 16, 2), created("__consumer_offsets", b"k" * 16, 3))
    assert cache.names() == ("__consumer_offsets", "a", "b")
    assert cache.topic_by_id(ID) is cache.topic("b")
    assert [topic.internal for topic in cache.topics()] == [True, False, False]
    assert cache.partition("b", 0).raft_group == 1
    assert (cache.partition("b", 1), cache.partition("b", -1), cache.partition("nope", 0)) == (None, None, None)
    assert cache.topic("nope") is None
    with pytest.raises(KeyError):
        cache.topic_config("nope")


def test_the_list_of_names_follows_creations_and_deletions():
    world = World(1).start()
    world.submit(CreateTopics((CreateTopic("b"), CreateTopic("a"))))
    world.run()
    cache = world.nodes[0].cache
    assert cache.names() == ("a", "b")
    world.submit(DeleteTopics((TopicReference("b"),)))
    world.run()
    assert cache.names() == ("a",)


def test_a_cache_does_not_change_the_state_it_was_made_from():
    state = ControllerState()
    state.apply(ClusterCreated("x", 1))
    cache = MetadataCache(state, {}, SETTINGS)
    apply(cache, created("a.b"), 0)
    assert (state.revision, state.topics, state.topics.colliding) == (1, {}, {})
    assert (cache.revision, cache.cluster_id) == (2, "x")


def test_a_configuration_is_resolved_once_and_again_after_a_change():
    cache = cache_of(created("t"))
    first = cache.topic_config("t")
    assert cache.topic_config("t") is first
    apply(cache, NodeConfigsChanged(1, {"log.retention.ms": "7"}))
    assert (first.retention_ms, cache.topic_config("t").retention_ms) == (604_800_000, 7)
    apply(cache, NodeConfigsChanged(2, {"log.retention.ms": "8"}))
    assert cache.topic_config("t").retention_ms == 7


class Heard(MetadataListener):
    def __init__(self):
        self.events = []

    def replicas_changed(self, topic, indexes):
        self.events.append((topic.name, topic.partitions[0].replicas, indexes))

    def broker_changed(self, node):
        self.events.append(node)


def test_brokers_and_replicas_reach_listeners_and_void_encoded_answers(capfd):
    cache = cache_of(created("t"))
    heard = Heard()
    cache.subscribe(heard)
    cache.set_leader_epochs(ID, [(0, 7, 1, ())])
    commands = [FeatureLevelRaised(1)]
    for node in (1, 2):
        commands += [BrokerRegistered(node, bytes([node]) * 16, PROFILE), BrokerUnfenced(node, 2 + 2 * node)]
    commands.append(ReplicasChanged(ID, (ReplicaChange(0, (1, 2)),)))
    commands.append(BrokerFenced(2, 6))
    for command in commands:
        cache.encoded[1] = b"old"
        announce([command], cache)
        apply(cache, command, *([2] if isinstance(command, ReplicasChanged) else []))
        assert (cache.encoded == {}) == (not isinstance(command, FeatureLevelRaised))
    assert heard.events == [1, 1, 2, 2, ("t", (1, 2), [0]), 2]
    assert (cache.partition("t", 0).leader_epoch, cache.partition("t", 0).home_shard) == (7, 2)
    lines = capfd.readouterr().err
    assert "broker 1 registered: release 0.1.0, h:33145" in lines
    assert "t/0: the replicas have moved to brokers 1, 2" in lines
    assert "broker 2 has stopped or gives no sign of life, and is fenced" in lines


def test_users_and_rights_are_announced_without_credentials(capfd):
    verifier = Verifier(b"salt-1234", b"stored-key", b"server-key", 4096)
    entry = AclEntry(ResourceType.TOPIC, PatternType.PREFIXED, "orders", "User:alice", "*", Operation.READ, 3)
    commands = [SecretSet("decoys", b"secret-1"), UserSet("alice", 1, verifier), UserRemoved("alice", 1)]
    announce([*commands, AclsCreated((entry,)), AclsDeleted((entry,))], cache_of())
    lines = capfd.readouterr().err
    assert "user alice: a credential for SCRAM-SHA-256 is set" in lines
    assert "user alice: the credential for SCRAM-SHA-256 is removed" in lines
    for verb in ("created", "deleted"):
        assert f"entry {verb}: allow read on topic orders (prefixed) for User:alice from *" in lines
    assert not any(word in lines for word in ("secret-1", "salt-1234", "stored-key", "server-key"))


def test_the_other_replicas_are_named_in_turn_while_a_replica_here_hears_no_leader():
    cache = cache_of(TopicCreated("t", ID, (PartitionState(1, (1, 2, 3), 1),), {}))
    apply(cache, FeatureLevelRaised(1))
    for node in (1, 2, 3):
        apply(cache, BrokerRegistered(node, bytes([node]) * 16, PROFILE))
        apply(cache, BrokerUnfenced(node, cache.state.registry.brokers[node].epoch))

    def named(turns):
        return [cache.other_replica(cache.partition("t", 0), turn) for turn in turns]

    assert named(range(3)) == [None, None, None]
    cache.set_leader_epochs(ID, [(0, 7, 1, (1,)), (0, 7, UNKNOWN, ())])
    assert cache.leader_of(cache.partition("t", 0)) is None
    assert named(range(3)) == [None, None, None], "an election takes its time"
    assert not cache.topic("t").lost
    cache.set_leader_epochs(ID, [(0, 7, LOST, ())])
    assert cache.topic("t").lost
    assert named([0]) == [None], "the first answer is honest"
    assert set(named([1, 2])) == {2, 3}
    assert cache.partition("t", 0).in_sync == (1,), "who was in sync is not known better here"
    cache.set_leader_epochs(ID, [(0, 6, 1, ())])
    assert cache.topic("t").lost, "the news of an older leadership"
    apply(cache, BrokerFenced(2, cache.state.registry.brokers[2].epoch))
    assert named([1, 2]) == [3, 3]
    cache.set_leader_epochs(ID, [(0, 8, 1, ())])
    assert cache.leader_of(cache.partition("t", 0)) == 1
    assert named(range(3)) == [None, None, None]


def test_replicas_in_sync_are_named_in_the_order_of_the_replicas_if_they_are_alive():
    cache = cache_of(TopicCreated("t", ID, (PartitionState(1, (3, 1, 2), 3),), {}))
    apply(cache, FeatureLevelRaised(1))
    for node in (1, 2, 3):
        apply(cache, BrokerRegistered(node, bytes([node]) * 16, PROFILE))
        apply(cache, BrokerUnfenced(node, cache.state.registry.brokers[node].epoch))
    cache.set_leader_epochs(ID, [(0, 7, 3, (1, 2, 3))])  # leaders report them sorted
    assert cache.in_sync(cache.partition("t", 0)) == [3, 1, 2]
    cache.set_leader_epochs(ID, [(0, 7, 3, (2, 3))])
    assert cache.in_sync(cache.partition("t", 0)) == [3, 2]
    apply(cache, BrokerFenced(2, cache.state.registry.brokers[2].epoch))
    assert cache.in_sync(cache.partition("t", 0)) == [3]


def test_properties_that_this_release_does_not_take_are_left_out_and_the_rest_counts(capfd):
    cache = cache_of(
        TopicCreated("t", ID, (PartitionState(1, (1,), 1),), {"retention.ms": "7", "of.the.future": "1"}),
        NodeConfigsChanged(1, {"of.the.future": "1"}),
    )
    assert cache.topic_config("t").retention_ms == 7
    assert cache.settings == SETTINGS
    lines = capfd.readouterr().err
    assert lines.count("of.the.future") == 1, "a broker setting is kept, as by Kafka"


def test_leader_epochs_reach_every_shard_with_the_others_of_the_turn():
    world = World(3).start()
    world.create("t", 4)
    world.run()
    before = world.nodes[0].cache.topic("t")
    before.encoded[1] = b"old"
    follower = world.nodes[1].follower
    follower.report_leader(before.topic_id, 1, 5)
    follower.report_leader(before.topic_id, 3, 6)
    follower.report_leader(b"gone" * 4, 0, 7)
    follower.report_leader(before.topic_id, 9, 7)
    world.run()
    assert world.caches_agree()
    after = world.nodes[0].cache.topic("t")
    assert [part.leader_epoch for part in after.partitions] == [0, 5, 0, 6]
    assert after.encoded == {}


def test_leader_epochs_survive_other_changes_of_the_topic():
    world = World(2).start()
    world.create("t", 1)
    world.run()
    world.nodes[1].follower.report_leader(world.nodes[0].cache.topic("t").topic_id, 0, 5)
    world.run()

    world.submit(CreatePartitions((AddPartitions("t", 2),)))
    world.run()
    assert [part.leader_epoch for part in world.nodes[1].cache.topic("t").partitions] == [5, 0]


def test_a_shard_that_knows_a_commit_already_only_says_so():
    world = World(2).start()
    world.create("t", 2)
    world.run()

    late = Commit(world.nodes[1].cache.revision - 1, tuple(world.log.history[-1:]), (0, 1))
    applied = []
    world.nodes[1].follower.on_applied = applied.append
    world.nodes[1].follower.follow(late)
    world.run()
    assert applied == [late.end]
    with pytest.raises(AssertionError, match="after revision"):
        world.nodes[1].follower.follow(Commit(99, late.commands, (0, 1)))
        world.run()

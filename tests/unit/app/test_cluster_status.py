"""The state of the cluster in numbers, and what is wrong in sentences."""

from types import SimpleNamespace

from millstream.app.cluster_status import HEARING_US, NAMED_MAX, OwnParts, joined, serve_cluster_status
from millstream.cluster.metadata import MetadataCache
from millstream.cluster.placement import ELSEWHERE
from millstream.config.settings import Settings
from millstream.core.controller.commands import (
    MANY_BROKERS,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    ClusterCreated,
    FeatureLevelRaised,
    PartitionState,
    TopicCreated,
)
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.state import ControllerState
from millstream.model.cluster import UNKNOWN
from millstream.telemetry.metrics import StatsSlab

ID = bytes(range(16))


def cluster(*dead, partitions=3, replicas=(1, 2, 3)):
    state = ControllerState()
    state.apply(ClusterCreated("c", 1))
    state.apply(FeatureLevelRaised(MANY_BROKERS))
    for node in (1, 2, 3):
        listener = ListenerAddress("PLAINTEXT", f"h{node}", 9092)
        profile = BrokerProfile((listener,), PeerAddress(f"h{node}", 9192), f"r{node}", 2, "0.1.0", MANY_BROKERS)
        state.apply(BrokerRegistered(node, bytes([node]) * 16, profile))
        epoch = state.registry.brokers[node].epoch
        state.apply(BrokerUnfenced(node, epoch))
        if node in dead:
            state.apply(BrokerFenced(node, epoch))
    created = tuple(PartitionState(1 + index, replicas, replicas[0]) for index in range(partitions))
    state.apply(TopicCreated("t", ID, created, {}))
    return MetadataCache(state, dict.fromkeys(range(partitions), ELSEWHERE), Settings(node_id=1))


def asked(metadata, leader=2, after_us=HEARING_US):
    """The answer so long after the start of the broker."""
    times = iter((0, after_us))
    handlers, answers = {}, []
    control = SimpleNamespace(serve=handlers.__setitem__)

    def background(work, steps, share, done):
        for _ in steps:
            pass
        done()

    controller = SimpleNamespace(leader=leader, voters=(1, 2, 3))
    reactor = SimpleNamespace(background=background, now_us=lambda: next(times))
    uploads = SimpleNamespace(archives={1: None, 2: None}, backlog=SimpleNamespace(size_bytes=4096), lag_ms=1500)
    serve_cluster_status(control, reactor, metadata, controller, OwnParts(list, uploads, StatsSlab()))
    handlers["cluster"](None, answers.append)
    return answers[0]


def test_a_healthy_cluster_has_no_problems():
    status = asked(cluster())
    assert (status["healthy"], status["problems"], status["controller"]) == (True, [], 2)
    assert (status["topics"], status["partitions"]) == (1, 3)
    assert status["brokers"][0] == {
        "id": 1,
        "alive": True,
        "address": "h1:9092",
        "peer": "h1:9192",
        "rack": "r1",
        "shards": 2,
        "release": "0.1.0",
        "leaders": 3,
        "replicas": 3,
        "mode": "serving",
        "leads_alone": 0,
        "lost": False,
    }
    assert (status["moves"], status["voters"], status["feature_level"]) == ([], (1, 2, 3), 1)


def test_leaders_of_which_nothing_was_heard_since_the_start_are_counted_apart_for_a_while():
    metadata = cluster(3)
    metadata.set_leader_epochs(ID, [(0, 4, 2, (1, 2)), (1, 4, UNKNOWN, ())])
    early = asked(metadata, after_us=HEARING_US - 1)
    assert (early["leaderless_count"], early["leaderless"], early["not_heard_count"]) == (0, [], 2)
    assert early["healthy"] is False
    (said,) = [problem for problem in early["problems"] if "leader" in problem]
    assert said.startswith("partitions whose leader broker 1, which has just started, does not know yet: 2")
    assert [broker["leaders"] for broker in early["brokers"]] == [0, 1, 0]
    later = asked(metadata)
    assert (later["leaderless_count"], later["not_heard_count"]) == (1, 0)
    gone = asked(cluster(2, 3, replicas=(2, 3)), after_us=0)
    assert (gone["leaderless_count"], gone["not_heard_count"]) == (3, 0), "no replica of it is alive"


def test_a_dead_broker_leaves_partitions_without_leader_or_with_fewer_replicas():
    status = asked(cluster(1, 3))
    assert status["healthy"] is False
    assert (status["leaderless_count"], status["under_replicated_count"]) == (0, 3), "this broker is alive to itself"
    assert [problem.split(";")[0] for problem in status["problems"]] == [
        "brokers that are not alive: 3",
        "partitions with replicas that are not in sync: 3",
    ]
    status = asked(cluster(2, replicas=(2, 1)))
    assert (status["leaderless_count"], status["leaderless"][0]) == (3, {"topic": "t", "partition": 0})
    assert "partitions without a leader, which are not served: 3; start brokers" in status["problems"][1]


def test_without_a_controller_it_says_how_many_brokers_are_needed():
    status = asked(cluster(), leader=None)
    (problem,) = status["problems"]
    assert problem.startswith("broker 1 knows no controller, so topics cannot be changed; start brokers, or mend")
    assert problem.endswith("until 2 of the brokers 1, 2, 3 reach each other")


def test_only_so_many_partitions_are_named():
    status = asked(cluster(2, partitions=NAMED_MAX + 5, replicas=(2,)))
    assert (len(status["leaderless"]), status["leaderless_count"]) == (NAMED_MAX, NAMED_MAX + 5)


def test_what_every_shard_has_not_uploaded_is_added_up():
    first = asked(cluster())
    assert first["take_overs"] == 0
    assert first["shared"] == {"partitions": 2, "uncommitted_bytes": 4096, "upload_lag_ms": 1500}
    shared = {"partitions": 1, "uncommitted_bytes": 10, "upload_lag_ms": 2000}
    second = {"installs": [], "shared": shared, "failed_partitions": ["t:3"]}
    both = joined([first, second])
    assert both["failed_partitions"] == ["t:3"]
    assert not both["healthy"] and "t:3" in both["problems"][-1]
    assert both["shared"] == {"partitions": 3, "uncommitted_bytes": 4106, "upload_lag_ms": 2000}

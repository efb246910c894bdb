"""The controller's shell: order, durability, visibility on every shard, overload, stop."""

import base64
import uuid

import pytest
from cluster_world import DATA, World

from millstream.cluster.controller import new_cluster_id, new_topic_id
from millstream.cluster.messages import Commit
from millstream.cluster.own_shards import PENDING_MAX
from millstream.core.controller.commands import PartitionState, TopicCreated
from millstream.core.controller.requests import (
    AddPartitions,
    AlterConfigs,
    AlterNode,
    AlterTopic,
    ConfigChange,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    TopicReference,
)
from millstream.errors import Corruption, OutcomeUnknown, Rejected, Retriable, ShuttingDown, Unavailable
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode

TOPIC_ID = bytes(range(16))


def test_an_empty_directory_becomes_a_cluster_that_keeps_its_id():
    world = World().start()
    cluster_id = world.nodes[1].cache.cluster_id
    assert len(cluster_id) == 22
    assert world.restart().start().nodes[0].cache.cluster_id == cluster_id


def test_a_topic_created_through_one_shard_is_known_and_open_on_all_before_the_answer():
    world = World(3).start()
    answers = world.create("t", 5, shard=2)
    seen: list[bool] = []
    while not answers:
        for node in world.nodes:
            node.reactor.turn()
        world.log.sync()
        if answers:
            seen = [("created", "t", 5) in node.recorder.events for node in world.nodes]
    assert answers[0][0].error == ErrorCode.NONE
    assert seen == [True, True, True]
    homes = [part.home_shard for part in world.nodes[1].cache.topic("t").partitions]
    assert homes == [0, 1, 2, 0, 1]
    assert world.caches_agree()


def test_a_leader_that_is_reported_before_this_shard_knows_its_topic_is_known_after_it():
    world = World().start()
    first, second = world.nodes
    told = []
    first.follower.on_leaders = lambda changed: told.append(first.cache.topic_by_id(changed[0].topic_id))
    created = TopicCreated("t", TOPIC_ID, (PartitionState(1, (1,), 1),), {})
    commit = Commit(first.cache.revision, (created,), (1,))
    second.follower.follow(commit)
    world.run()
    for epoch in (7, 8):
        second.follower.report_leader(TOPIC_ID, 0, epoch)
        world.run()
    assert not told
    first.follower.follow(commit)
    world.run()
    assert [topic.name for topic in told] == ["t", "t"], "other brokers are told of a topic that is known here"
    assert [node.cache.topic("t").partitions[0].leader_epoch for node in world.nodes] == [8, 8]


def test_nothing_is_answered_or_visible_before_the_log_is_synced():
    world = World().start()
    answers = world.create("t")
    world.run(sync=False)
    assert not answers
    assert all(node.cache.topic("t") is None for node in world.nodes)
    world.run()
    assert answers[0][0].error == ErrorCode.NONE


def test_a_request_sees_those_before_it_though_none_is_durable_yet():
    world = World().start()
    first, second = world.create("t"), world.create("t")
    deleted = world.submit(DeleteTopics((TopicReference("t"),)))
    third = world.create("t")
    world.run(sync=False)
    assert not (first or second or deleted or third), "an answer that rests on what a crash may take away"
    world.run()
    codes = [answers[0][0].error.name for answers in (first, second, deleted, third)]
    assert codes == ["NONE", "TOPIC_ALREADY_EXISTS", "NONE", "NONE"]
    assert world.nodes[1].recorder.events == [("created", "t", 1), ("deleted", "t"), ("created", "t", 1)]


def test_an_answer_that_changes_nothing_does_not_wait_for_a_sync():
    world = World().start()
    world.create("t")
    world.run()
    answers = world.create("t")
    world.run(sync=False)
    assert answers[0][0].error == ErrorCode.TOPIC_ALREADY_EXISTS


def test_listeners_hear_of_every_change_on_every_shard():
    world = World().start()
    world.create("t", 2)
    world.submit(CreatePartitions((AddPartitions("t", 3),)))
    world.submit(AlterConfigs((AlterTopic("t", (ConfigChange("retention.ms", 0, "5"),)),)))
    world.submit(AlterConfigs((AlterNode(1, (ConfigChange("log.retention.ms", 0, "9"),)),)))
    world.create("u")
    world.submit(DeleteTopics((TopicReference("t"),)))
    world.run()
    for node in world.nodes:
        assert node.recorder.events == [
            ("created", "t", 2),
            ("grown", "t", 2, 3),
            ("configs", "t", 5),
            ("settings", 9),
            ("configs", "t", 5),
            ("created", "u", 1),
            ("deleted", "t"),
        ]
        assert node.cache.settings.log_retention_ms == 9
        assert node.cache.topic_config("u").retention_ms == 9
    assert world.caches_agree()


def test_a_request_that_times_out_has_an_unknown_outcome_and_may_still_happen():
    world = World().start()
    answers = world.submit(CreateTopics((CreateTopic("t"),)), shard=1, timeout_ms=50)
    world.run(sync=False)
    world.nodes[1].reactor.skew_us = 60_000
    while not answers:  # the mailbox looks at the real clock
        world.run(sync=False)
    assert isinstance(answers[0], OutcomeUnknown)
    assert answers[0].code == ErrorCode.REQUEST_TIMED_OUT
    world.run()
    assert all(node.cache.topic("t") is not None for node in world.nodes)


def test_a_request_without_any_time_is_not_carried_out():
    world = World().start()
    answers = world.submit(CreateTopics((CreateTopic("t"),)), shard=1, timeout_ms=-1)
    while not answers:
        world.run()
    assert answers[0].code == ErrorCode.REQUEST_TIMED_OUT


def test_more_requests_than_may_wait_are_refused_and_nothing_is_done():
    world = World(1).start()
    waiting = [world.create(f"t{number}") for number in range(PENDING_MAX)]
    world.run(sync=False)
    refused = world.create("one-too-many")
    world.run(sync=False)
    assert isinstance(refused[0], Retriable)
    assert refused[0].code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    world.run()
    assert all(answers[0][0].error == ErrorCode.NONE for answers in waiting)
    assert world.nodes[0].cache.topic("one-too-many") is None
    after = world.create("one-too-many")
    world.run()
    assert after[0][0].error == ErrorCode.NONE


@pytest.mark.parametrize("refusal", [ArenaFull("full"), Unavailable("disk full")])
def test_a_log_that_takes_nothing_leaves_the_cluster_as_it_was(refusal):
    world = World().start()
    world.log.refuse = refusal
    answers = world.create("t")
    world.run()
    assert isinstance(answers[0], Unavailable)
    world.log.refuse = None
    again = world.create("t")
    world.run()
    assert again[0][0].error == ErrorCode.NONE
    assert [part.home_shard for part in world.nodes[0].cache.topic("t").partitions] == [0]


def test_stop_answers_what_is_under_way_refuses_the_rest_and_saves():
    world = World().start()
    under_way = world.create("t")
    world.nodes[0].reactor.turn()
    world.nodes[0].reactor.turn()
    stopped: list[None] = []
    world.controller.stop(lambda: stopped.append(None))
    late = world.create("u")
    world.run(sync=False)
    assert isinstance(late[0], ShuttingDown)
    assert not stopped
    world.run()
    assert under_way[0][0].error == ErrorCode.NONE
    assert stopped == [None]
    assert world.store.revision == world.nodes[0].cache.revision
    assert f"{DATA}/placement.json" in world.disk.names


def test_a_log_that_does_not_end_where_the_state_does_is_refused():
    world = World().start()
    world.create("t")
    world.run()
    world.stop()
    world.log.batches.clear()
    world.log.start_offset = 0
    with pytest.raises(Corruption, match="ends at 0"):
        world.restart()


def test_another_nodes_directory_is_refused_by_name():
    world = World().start()
    world.stop()
    with pytest.raises(Rejected, match=r"node\.id 1, not 7"):
        World(2, disk=world.disk, node_id=7)


def test_ids_are_never_kafkas_reserved_ones_and_do_not_look_like_options(monkeypatch):
    made = iter([bytes(16), bytes(15) + b"\1", b"\xf8" + bytes(15), b"\x04" + bytes(15)])
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=next(made)))
    assert new_topic_id() == b"\x04" + bytes(15)


def test_a_cluster_id_is_a_uuid_as_kafka_writes_one():
    made = new_cluster_id()
    assert len(base64.urlsafe_b64decode(made + "==")) == 16

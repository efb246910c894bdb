"""The way to the controller: creation on first use, and producer ids."""

from cluster_world import World

from millstream.cluster.client import CREATIONS_MAX
from millstream.cluster.producer_ids import AGAIN_US, BLOCK, LOW, WAIT_US, WAITERS_MAX
from millstream.cluster.topic_table import TopicMeta
from millstream.core.controller.commands import ProducerIdsAllocated, TopicCreated
from millstream.core.controller.requests import DeleteTopics, TopicReference
from millstream.errors import MillstreamError, Rejected, Retriable, Unavailable
from millstream.model.error_code import ErrorCode


def ensure(world, name, shard=0):
    outcomes: list[TopicMeta | MillstreamError] = []
    world.nodes[shard].client.ensure_topic(name, outcomes.append)
    return outcomes


def test_many_who_ask_for_a_topic_on_many_shards_get_the_same_one():
    world = World(3, num_partitions=3).start()
    asked = [ensure(world, "t", shard) for shard in (0, 1, 2, 2, 1)]
    world.run()
    ids = {outcomes[0].topic_id for outcomes in asked}
    assert len(ids) == 1
    assert sum(isinstance(command, TopicCreated) for command in world.log.history) == 1
    assert len(world.nodes[2].cache.topic("t").partitions) == 3
    assert world.nodes[1].cache.topic("t") in ensure(world, "t", 1)


def test_names_of_one_turn_travel_together_and_each_gets_its_own_outcome():
    world = World(2).start()
    good, bad, clash = (ensure(world, name, 1) for name in ("x.y", "not legal", "z"))
    world.run()
    assert good[0].name == "x.y"
    assert isinstance(bad[0], Rejected)
    assert bad[0].code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert clash[0].name == "z"
    assert len(world.log.batches) == 2, "cluster_created, and one batch for both topics"
    collides = ensure(world, "x_y")
    world.run()
    assert collides[0].code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_request_for_very_many_topics_is_split_so_that_none_is_refused_for_its_size():
    world = World(1, num_partitions=4000, partitions_per_shard_max=20_000).start()
    asked = [ensure(world, f"t{number}") for number in range(5)]
    world.run()
    assert [len(outcomes[0].partitions) for outcomes in asked] == [4000] * 5


def test_the_topic_of_consumer_groups_gets_its_own_shape():
    world = World(2, offsets_topic_num_partitions=7).start()
    outcomes = ensure(world, "__consumer_offsets", 1)
    world.run()
    topic = outcomes[0]
    assert topic.internal
    assert len(topic.partitions) == 7
    assert topic.config.cleanup_policy == ("compact",)
    assert topic.config.segment_bytes == 104_857_600


def test_a_topic_that_is_deleted_again_at_once_is_a_reason_to_try_again():
    world = World(2).start()
    outcomes = ensure(world, "t", 1)
    for _ in range(3):
        world.nodes[1].reactor.turn()
        world.nodes[0].reactor.turn()
    world.submit(DeleteTopics((TopicReference("t"),)))
    world.run(sync=False)
    world.run()
    assert isinstance(outcomes[0], TopicMeta | Retriable)
    if isinstance(outcomes[0], Retriable):
        assert outcomes[0].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_creation_that_fails_can_be_asked_for_again():
    world = World(1).start()
    world.log.refuse = Unavailable("disk full")
    first = ensure(world, "t")
    world.run()
    assert isinstance(first[0], Unavailable)
    world.log.refuse = None
    second = ensure(world, "t")
    world.run()
    assert second[0].name == "t"


def test_names_without_number_are_refused_before_they_pile_up():
    world = World(1).start()
    for number in range(CREATIONS_MAX):
        ensure(world, f"t{number}")
    refused = ensure(world, "one-too-many")
    assert refused[0].code == ErrorCode.LEADER_NOT_AVAILABLE


# Producer ids


def take(world, shard, count):
    ids: list[int | MillstreamError] = []
    for _ in range(count):
        world.nodes[shard].producer_ids.next(ids.append)
    return ids


def test_ids_are_distinct_over_shards_and_restarts_and_dense_within_a_block():
    world = World(2).start()
    first = take(world, 0, 3)
    other = take(world, 1, 3)
    world.run()
    assert first == list(range(first[0], first[0] + 3))
    assert {i // BLOCK for i in first} != {i // BLOCK for i in other}
    world = world.restart().start()
    later = take(world, 0, 3)
    world.run()
    assert min(later) > max(first + other)


def test_an_id_is_not_given_out_before_its_block_is_durable():
    world = World(1).start()
    ids = take(world, 0, 1)
    world.run(sync=False)
    assert not ids
    world.run()
    assert ids == [0]


def test_the_next_block_is_there_before_the_last_one_is_used_up():
    world = World(1).start()
    take(world, 0, 1)
    world.run()
    take(world, 0, BLOCK - LOW)
    world.run()
    blocks = [c.start for c in world.log.history if isinstance(c, ProducerIdsAllocated)]
    assert blocks == [0, BLOCK]
    rest = take(world, 0, LOW + 5)
    assert len(rest) == LOW + 5, "none of them waited"
    assert rest[-1] == BLOCK + 5


def test_more_waiters_than_a_block_has_ids_are_all_served():
    world = World(1).start()
    ids = take(world, 0, 2 * BLOCK + 7)
    world.run()
    assert ids == list(range(2 * BLOCK + 7))


def test_without_a_block_waiters_are_told_to_come_again():
    world = World(1).start()
    world.log.refuse = Unavailable("disk full")
    ids = take(world, 0, 2)
    world.run()
    assert [error.code for error in ids] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
    world.log.refuse = None
    again = take(world, 0, 1)
    world.run()
    assert again == [0]


def test_a_controller_that_does_not_answer_keeps_no_producer_waiting():
    world = World(1).start()
    node = world.nodes[0]
    ids = take(world, 0, 2)
    world.run(sync=False)
    assert not ids
    node.reactor.skew_us += WAIT_US
    world.run(sync=False)
    assert [error.code for error in ids] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
    assert all(isinstance(error, Retriable) for error in ids)
    world.run()
    assert take(world, 0, 1) == [0], "the block that came late serves the next one"


def test_ids_that_are_asked_for_ahead_are_there_for_a_broker_that_is_cut_off_later():
    world = World(1).start()
    world.nodes[0].producer_ids.ask_ahead()
    world.run()
    world.log.refuse = Unavailable("cut off")
    assert take(world, 0, 2) == [0, 1]


def test_ids_are_asked_for_ahead_until_they_come():
    world = World(1).start()
    node = world.nodes[0]
    world.log.refuse = Unavailable("cut off")
    node.producer_ids.ask_ahead()
    world.run()
    world.log.refuse = None
    node.reactor.skew_us += AGAIN_US
    world.run()
    assert take(world, 0, 1) == [0]


def test_waiters_are_bounded():
    world = World(1).start()
    ids = take(world, 0, WAITERS_MAX + 1)
    assert [error.code for error in ids] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]

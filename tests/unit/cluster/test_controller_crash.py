"""Power off between any two steps: what was answered is there, what is there is a prefix of what was decided, and the
broker goes on from it."""

import pytest
from cluster_world import Crash, Steps, World

from millstream.cluster.state_files import read_snapshots
from millstream.core.controller.commands import AnyCommand, ProducerIdsAllocated
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
from millstream.core.controller.state import ControllerState, encode_state
from millstream.errors import MillstreamError
from millstream.iobuf import ArenaFull


def scenario(world: World, answered: list[int], ids: list[int]) -> None:
    """Every kind of command, a snapshot in the middle and two after it, a clean stop at the end."""

    def ask(request, shard=0):
        answers = world.submit(request, shard)
        world.run()
        assert not isinstance(answers[0], MillstreamError)
        answered.append(len(world.log.history))

    def elapse():
        world.nodes[0].reactor.skew_us += 61_000_000
        world.run()

    ask(CreateTopics((CreateTopic("a", 2), CreateTopic("b", 1))), 1)
    ask(AlterConfigs((AlterTopic("a", (ConfigChange("retention.ms", 0, "5"),)),)))
    elapse()
    world.nodes[1].producer_ids.next(ids.append)
    world.run()
    ask(CreatePartitions((AddPartitions("b", 4),)))
    ask(DeleteTopics((TopicReference("a"),)), 1)
    elapse()
    ask(AlterConfigs((AlterNode(1, (ConfigChange("log.retention.ms", 0, "9"),)),)))
    ask(CreateTopics((CreateTopic("a", 3),)))
    elapse()
    world.nodes[0].producer_ids.next(ids.append)
    world.run()
    world.stop()


def replay(commands: list[AnyCommand]) -> ControllerState:
    state = ControllerState()
    for command in commands:
        state.apply(command)
    return state


def steps_of_the_whole_scenario() -> int:
    world = World(2)
    world.start()
    scenario(world, [], [])
    return world.steps.taken


TOTAL = steps_of_the_whole_scenario()


def test_the_scenario_is_worth_crashing():
    assert TOTAL > 150


@pytest.mark.parametrize("crash_at", range(TOTAL))
def test_a_crash_leaves_a_prefix_that_holds_everything_answered(crash_at):
    steps = Steps(crash_at)
    world, answered, ids = None, [], []
    try:
        world = World(2, steps=steps)
        world.start()
        answered.append(len(world.log.history))
        scenario(world, answered, ids)
    except Crash:
        if world is None:
            return  # nothing existed yet
    else:
        pytest.fail("the crash did not come")
    history = world.log.history
    again = world.restart()
    state = again.loaded.state
    assert encode_state(state) == encode_state(replay(history[: state.revision])), "no prefix of what was decided"
    assert state.revision >= max(answered, default=0), "something that was answered is gone"
    handed_out = [c for c in history[: state.revision] if isinstance(c, ProducerIdsAllocated)]
    assert all(any(c.start <= i < c.start + c.count for c in handed_out) for i in ids), "an id that was not durable"

    again.start()
    fresh: list[int] = []
    again.nodes[1].producer_ids.next(fresh.append)
    answers = again.create("after", 2, shard=1)
    again.run()
    assert answers[0][0].error == 0
    assert fresh[0] not in ids
    assert again.caches_agree()
    assert again.nodes[0].cache.topic("after").topic_id == again.nodes[1].cache.topic("after").topic_id
    groups = [part.raft_group for topic in again.nodes[0].cache.topics() for part in topic.partitions]
    assert len(groups) == len(set(groups))


def test_a_crash_of_the_restarted_broker_is_survived_too():
    world = World(2).start()
    for number in range(4):
        world.create(f"t{number}")
        world.run()
        world = world.restart().start()
    assert [topic.name for topic in world.nodes[1].cache.topics()] == ["t0", "t1", "t2", "t3"]


def test_the_number_of_shards_may_change_between_two_starts():
    world = World(2).start()
    world.create("t", 6)
    world.run()
    world.stop()
    wider = world.restart(shards=3).start()
    assert [part.home_shard for part in wider.nodes[2].cache.topic("t").partitions] == [0, 1, 2, 0, 1, 2]
    assert wider.caches_agree()
    narrower = wider.restart(shards=1).start()
    assert {part.home_shard for part in narrower.nodes[0].cache.topic("t").partitions} == {0}


def test_the_log_is_trimmed_behind_the_older_snapshot_and_a_rotten_newer_one_costs_nothing():
    world = World(2).start()
    for number in range(3):
        world.create(f"t{number}")
        world.run()
        world.nodes[0].reactor.skew_us += 61_000_000
        world.run()
    world.create("last")
    world.run()
    revisions = [state.revision for _, state in read_snapshots(world.disk, "/data")]
    assert revisions == [4, 3]
    assert world.log.start_offset == 3
    newest = read_snapshots(world.disk, "/data")[0][0]
    rotten = world.disk.names[f"/data/controller/{newest}"]
    rotten.durable = rotten.durable[:-1] + b"?"
    again = world.restart().start()
    assert [topic.name for topic in again.nodes[1].cache.topics()] == ["last", "t0", "t1", "t2"]
    again.create("more")
    again.run()
    again.stop()
    assert [state.revision for _, state in read_snapshots(again.disk, "/data")] == [6, 3]


def test_a_burst_of_changes_costs_one_snapshot_a_minute():
    world = World(1).start()
    for number in range(20):
        world.create(f"t{number}")
        world.run()
    assert world.store.revision == -1
    world.nodes[0].reactor.skew_us += 61_000_000
    world.run()
    assert world.store.revision == 21
    world.nodes[0].reactor.skew_us += 61_000_000
    world.run()
    assert world.store.revision == 21


def test_a_snapshot_that_cannot_be_saved_is_tried_again_and_nothing_is_trimmed():
    world = World(1).start()
    world.disk.full = True
    world.create("t")
    world.run()
    world.nodes[0].reactor.skew_us += 61_000_000
    world.run()
    assert (world.store.revision, world.log.start_offset) == (-1, 0)
    world.disk.full = False
    world.create("u")
    world.run()
    world.nodes[0].reactor.skew_us += 61_000_000
    world.run()
    assert world.store.revision == world.nodes[0].cache.revision


def test_a_log_that_cannot_be_trimmed_now_is_trimmed_with_the_next_snapshot(monkeypatch):
    world = World(1).start()
    for number in range(3):
        world.create(f"t{number}")
        world.run()
        with monkeypatch.context() as patched:
            if number == 1:

                def refuse(offset):
                    raise ArenaFull("full")

                patched.setattr(world.log, "trim_prefix", refuse)
            world.nodes[0].reactor.skew_us += 61_000_000
            world.run()
        assert world.log.start_offset == (0, 0, 3)[number]

"""Whatever is asked on whichever shard, syncs and restarts in between: all caches agree, and with the log."""

from cluster_world import World
from hypothesis import given, settings
from hypothesis import strategies as st

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

NAMES = st.sampled_from(["a", "b", "c.d", "c_d"])
CHANGE = st.builds(ConfigChange, st.sampled_from(["retention.ms", "log.retention.ms"]), st.integers(0, 1), st.just("7"))
REQUESTS = st.one_of(
    st.builds(lambda name, count: CreateTopics((CreateTopic(name, count),)), NAMES, st.integers(1, 5)),
    st.builds(lambda name: DeleteTopics((TopicReference(name),)), NAMES),
    st.builds(lambda name, count: CreatePartitions((AddPartitions(name, count),)), NAMES, st.integers(1, 8)),
    st.builds(lambda name, change: AlterConfigs((AlterTopic(name, (change,)),)), NAMES, CHANGE),
    st.builds(lambda node, change: AlterConfigs((AlterNode(node, (change,)),)), st.sampled_from([-1, 1]), CHANGE),
)
ACTIONS = st.one_of(
    st.tuples(st.just("ask"), REQUESTS, st.integers(0, 2)),
    st.tuples(st.just("turn"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("sync"), st.just(0), st.just(0)),
    st.tuples(st.just("minute"), st.just(0), st.just(0)),
    st.tuples(st.just("restart"), st.booleans(), st.just(0)),
)


@given(st.lists(ACTIONS, max_size=40))
@settings(max_examples=60)
def test_all_caches_agree_after_any_history(actions):
    world = World(3).start()
    for what, detail, shard in actions:
        if what == "ask":
            world.submit(detail, shard)
        elif what == "turn":
            world.nodes[detail].reactor.turn()
        elif what == "sync":
            world.log.sync()
        elif what == "minute":
            world.nodes[0].reactor.skew_us += 61_000_000
        else:
            if detail:
                world.run()
                world.stop()
            world = world.restart().start()
    world.run()
    assert world.caches_agree()
    first = world.nodes[0].cache
    homes = {part.raft_group: part.home_shard for topic in first.topics() for part in topic.partitions}
    assert homes == world.loaded.placement.homes
    opened = [node.recorder.events for node in world.nodes]
    assert opened[1:] == opened[:-1], "shards were told different things, or in another order"
    again = world.restart()
    assert again.nodes[2].cache.state == first.state
    again.close()

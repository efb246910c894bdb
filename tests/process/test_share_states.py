"""The state of share groups on a real broker: made by a member's heartbeat, and there after kill -9."""

import pytest

from millstream.testing.process import Broker
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteStatePartition,
    DeleteStateTopic,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadStatePartition,
    ReadStateTopic,
    StateBatch,
)
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteStatePartition,
    WriteStateTopic,
)
from raw_line import Line
from waits import until

pytestmark = pytest.mark.process

MEMBER = "AAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize("shards", [1, 2])
def test_states_outlive_a_kill(tmp_path, shards):
    with Broker(None, {}, tmp_path, shards=shards) as broker:
        with Line(broker.bootstrap) as line:
            line.ask(CreateTopicsRequest([CreatableTopic("t", 3, 1)], 60_000))
            (topic,) = line.ask(MetadataRequest([MetadataRequestTopic(name="t")])).topics
            join(line)
            states = until(lambda: initialized(line, topic.topic_id), "the heartbeat has made no state")
            epoch = states[0].state_epoch
            assert epoch > 0
            assert [(one.state_epoch, one.start_offset) for one in states] == [(epoch, -1)] * 3
            changes = [WriteStatePartition(n, epoch, 0, n, n, [StateBatch(9, 9, 2, 1)]) for n in range(3)]
            answer = line.ask(WriteShareGroupStateRequest("g", [WriteStateTopic(topic.topic_id, changes)]))
            assert [one.error_code for one in answer.results[0].partitions] == [0, 0, 0]
            gone = DeleteShareGroupStateRequest("g", [DeleteStateTopic(topic.topic_id, [DeleteStatePartition(2)])])
            assert line.ask(gone).results[0].partitions[0].error_code == 0
        broker.kill()
        broker.start()
        with Line(broker.bootstrap) as line:
            states = until(lambda: loaded(line, topic.topic_id), "the state does not load")
            assert [(one.error_code, one.start_offset) for one in states] == [(0, 0), (0, 1), (42, 0)]
            assert states[1].state_batches == [StateBatch(9, 9, 2, 1)]


def join(line):
    """A member joins."""
    found = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    until(lambda: line.ask(found).coordinators[0].error_code == 0, "there is no coordinator")
    request = ShareGroupHeartbeatRequest("g", MEMBER, 0, subscribed_topic_names=["t"])
    until(lambda: line.ask(request).error_code == 0, "the member cannot join")


def read(line, topic_id):
    partitions = [ReadStatePartition(n, -1) for n in range(3)]
    return line.ask(ReadShareGroupStateRequest("g", [ReadStateTopic(topic_id, partitions)])).results[0].partitions


def initialized(line, topic_id):
    states = read(line, topic_id)
    return all(one.error_code == 0 for one in states) and states


def loaded(line, topic_id):
    states = read(line, topic_id)
    return all(one.error_code in (0, 42) for one in states) and states

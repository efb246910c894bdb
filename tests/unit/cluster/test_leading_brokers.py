"""Before an unclean cut the other brokers say whether they lead the partition."""

import pytest

from millstream.cluster.leading_brokers import Answers, LeadingBrokers
from millstream.cluster.metadata import MetadataCache
from millstream.config.settings import Settings
from millstream.core.controller.commands import ClusterCreated, PartitionState, TopicCreated
from millstream.core.controller.state import ControllerState
from millstream.errors import OutcomeUnknown
from millstream.model.cluster import UNKNOWN

ID = b"t" * 16
GROUP = 7


class Network:
    """Calls between brokers, answered when they are sent."""

    def __init__(self):
        self.handlers = {}

    def calls_of(self, node):
        network = self

        class Calls:
            def serve(self, _, handler):
                network.handlers[node] = handler

            def call(self, to, _, payload, timeout_ms, done):
                if to in network.handlers:
                    network.handlers[to](node, payload, timeout_ms, done)
                else:
                    done(OutcomeUnknown("no answer"))

        return Calls()


def broker(network, node):
    state = ControllerState()
    state.apply(ClusterCreated("c", 1))
    state.apply(TopicCreated("t", ID, (PartitionState(GROUP, (1, 2, 3), 2),), {}))
    cache = MetadataCache(state, {}, Settings(data_dir="/unused", shards=1, node_id=node))
    return cache, LeadingBrokers(cache, network.calls_of(node))


@pytest.fixture
def three():
    network = Network()
    return {node: broker(network, node) for node in (1, 2, 3)}


def ask(three, group=GROUP, nodes=(2, 3)):
    found = []
    three[1][1].ask(group, nodes, found.append)
    return found


def test_a_broker_leads_from_its_own_report_until_it_leads_no_more_or_its_replica_has_failed(three):
    assert ask(three) == [Answers((), ())], "the leader that the creation has assigned may not lead"
    cache = three[2][0]
    cache.set_leader_epochs(ID, [(0, 3, 2, (1, 2, 3))])
    assert ask(three) == [Answers((2,), ())]
    cache.set_failed(2, GROUP, failed=True)
    assert ask(three) == [Answers((), ())]
    cache.set_failed(2, GROUP, failed=False)
    cache.set_leader_epochs(ID, [(0, 4, UNKNOWN, ())])
    assert ask(three) == [Answers((), ())]


def test_what_another_broker_says_of_a_leader_counts_for_nothing(three):
    three[3][0].set_leader_epochs(ID, [(0, 3, 2, (1, 2, 3))])
    assert ask(three) == [Answers((), ())]


def test_who_does_not_answer_is_named_and_no_other_broker_is_no_question(three):
    assert ask(three, nodes=(3, 9, 2, 8)) == [Answers((), (8, 9))]
    assert ask(three, nodes=()) == [Answers((), ())]
    assert ask(three, group=99) == [Answers((), ())], "a deleted partition has no leader"

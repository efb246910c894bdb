"""While a majority is away the broker that is left answers its clients, retriably, and closes nobody's connection.

A client takes a closed connection for a lost broker; franz-go gives up records of which it cannot know the fate.
"""

import pytest

from differential.good import GOOD, metadata_request
from differential.talk import Peer, Talk, Topic
from millstream.client.connection import Connection
from millstream.model.error_code import ErrorCode
from millstream.testing import cluster
from millstream.wire.apis import APIS
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from millstream.wire.messages.metadata import MetadataResponse
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci]

WRITE_TXN_MARKERS, UNANSWERED = 27, ErrorCode.UNKNOWN_SERVER_ERROR
LEFT, AWAY = 1, (2, 3)
TIMEOUT_S = 60
"""Kafka's clients wait for 30 s; a machine that is busy takes its time."""


class Replicated(Talk):
    """A talk whose topics have three replicas, and a leader on the broker that is left."""

    def topic(self, label="a", partitions=1, **configs):
        name = self.name(label)
        places = [CreatableReplicaAssignment(index, [LEFT, *AWAY]) for index in range(partitions)]
        wanted = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=places)
        made = self.quiet(CreateTopicsRequest([wanted], 30_000)).topics[0]
        assert made.error_code == 0, made
        self.await_topic(name, partitions)
        return Topic(name, made.topic_id)


def made(peer, make):
    """What ``make`` makes in a talk of its own."""
    talk = Replicated(peer, 0, -1)
    try:
        return make(talk)
    finally:
        talk.close()


def leader_in(line, name):
    """Error and leader of a topic's only partition."""
    (part,) = line.call(metadata_request(name), MetadataResponse, 12).topics[0].partitions
    return part.error_code, part.leader_id


def test_every_request_is_answered_and_no_connection_is_closed():
    with cluster(3, networks=False) as three:
        host, port = three.brokers[LEFT].bootstrap.split(":")
        peer = Peer("left", host, int(port))
        requests = {key: made(peer, make) for key, make in GOOD.items()}
        name = made(peer, lambda talk: talk.filled(3)).name
        with Connection(host, int(port), timeout_s=TIMEOUT_S) as line:
            assert leader_in(line, name) == (0, LEFT)
            for node in AWAY:
                three.kill(node)

            def others_are_lost():
                found = leader_in(line, name)
                assert found[1] in AWAY or found in ((0, LEFT), (ErrorCode.LEADER_NOT_AVAILABLE, -1)), found
                return found[1] in AWAY

            until(others_are_lost, "the broker never says that it has lost the others")
            named = {leader_in(line, name) for _ in range(4)}
            assert named == {(ErrorCode.LEADER_NOT_AVAILABLE, node) for node in AWAY}, "each of the others in turn"
            asked = [(APIS[key], version) for key in requests for version in sorted(set(APIS[key].versions))]
            for api, version in asked:  # all at once: those that wait for an election wait together
                line.send(requests[api.key], version)
            for api, version in asked:
                answer = line.receive(api.response)
                assert UNANSWERED not in codes_of(answer), f"{api.name} v{version}: {answer}"
        with Connection(host, int(port), timeout_s=TIMEOUT_S) as line:
            assert leader_in(line, name) == (ErrorCode.LEADER_NOT_AVAILABLE, -1), "the first answer names no other"
        for node in AWAY:
            three.restart(node)


def codes_of(answer):
    """Every error code of an answer, at any depth."""
    found = set()
    for field in answer.__struct_fields__:
        value = getattr(answer, field)
        if field.endswith("error_code"):
            found.add(value)
        for inner in value if isinstance(value, list) else ():
            if hasattr(inner, "__struct_fields__"):
                found |= codes_of(inner)
    return found

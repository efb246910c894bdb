"""The controller dies three times while topics are created and deleted all the time.

A creation that was acknowledged stays, a deletion that was acknowledged stays, and all brokers agree; also after all of
them have died. A request that nobody answered may have been carried out.
"""

import threading
import time

import pytest
from cluster_support import admin, controller_of, metadata
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic
from snapshots_support import topic_directories

from millstream.testing import cluster
from waits import PATIENCE_S, moment, until

pytestmark = pytest.mark.process

CHURNERS = 3
FAIL_OVER_MAX_S = 20
"""An election takes about two seconds, on a busy machine some more."""


class Churn(threading.Thread):
    """Creates topics under names that are never used again, and deletes every other one."""

    def __init__(self, brokers, number, ended):
        super().__init__(daemon=True)
        self._client = admin(*brokers.brokers.values())
        self._number = number
        self._ended = ended
        self.created, self.deleted = set(), set()
        """Names whose creation, and deletion, was acknowledged."""
        self.unsure = set()
        """Names of which a request had no answer."""
        self.acknowledged_at = []

    def run(self):
        number = 0
        while not self._ended.is_set():
            name = f"churn-{self._number}-{number}"
            number += 1
            topic = NewTopic(name, 2, 3)
            if self._asked(name, self._client.create_topics([topic], request_timeout=60)):
                self.created.add(name)
                if number % 2 and self._asked(name, self._client.delete_topics([name], request_timeout=60)):
                    self.deleted.add(name)

    def _asked(self, name, answers):
        try:
            answers[name].result(PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.NOT_CONTROLLER:
                return False  # certainly not carried out
            self.unsure.add(name)
            moment(0.1)
            return False
        self.acknowledged_at.append(time.monotonic())
        return True


def churned(broker):
    return {name for name in metadata(broker).topics if name.startswith("churn-")}


@pytest.mark.slow
def test_no_acknowledged_topic_is_lost_and_no_deleted_one_comes_back_when_the_controller_dies(record_property):
    with cluster(3) as made:
        ended = threading.Event()
        churners = [Churn(made, number, ended) for number in range(CHURNERS)]
        for churner in churners:
            churner.start()
        for _ in range(3):
            begun_at = time.monotonic()
            until(lambda since=begun_at: acknowledged(churners, since) >= 12)
            gone = controller_of(made)
            made.kill(gone)
            killed_at = time.monotonic()
            until(lambda since=killed_at: acknowledged(churners, since) > CHURNERS)
            first = min(at for churner in churners for at in churner.acknowledged_at if at > killed_at)
            record_property("fail-over, s", round(first - killed_at, 2))
            print(f"fail-over: {first - killed_at:.2f} s")
            assert first - killed_at < FAIL_OVER_MAX_S
            assert controller_of(made) != gone
            made.restart(gone)
        ended.set()
        for churner in churners:
            churner.join(PATIENCE_S)
            assert not churner.is_alive()
        check(made, churners)
        for node in made.brokers:
            made.kill(node)
        made.start()
        check(made, churners)


def in_sync(broker):
    topics = metadata(broker).topics.values()
    return all(len(part.isrs) == len(part.replicas) for topic in topics for part in topic.partitions.values())


def acknowledged(churners, since):
    return sum(at > since for churner in churners for at in list(churner.acknowledged_at))


def check(made, churners):
    """All brokers show the same topics: those that have to be there, and those that may."""
    deleted = set().union(*(churner.deleted for churner in churners))
    unsure = set().union(*(churner.unsure for churner in churners))
    created = set().union(*(churner.created for churner in churners)) - deleted - unsure
    assert len(created) > 10
    assert len(deleted) > 10
    one, two, three = made.brokers.values()
    until(lambda: churned(one) == churned(two) == churned(three))
    shown = churned(one)
    assert not created - shown, "an acknowledged creation is lost"
    assert not (deleted - unsure) & shown, "a deleted topic is back"
    assert shown <= created | unsure
    until(lambda: all(in_sync(broker) for broker in made.brokers.values()))
    for broker in made.brokers.values():
        until(lambda broker=broker: len(topic_directories(broker)) >= len(shown))

"""Groups of both protocols read through kills of their broker: they come back, miss nothing, keep what they committed.

How long they stand still is the protocols' law and the same as with Apache Kafka, which ``outage_support`` can watch as
well: members of the next protocol go on where they were. Classic ones of librdkafka give themselves up when the outage
was longer than their session, and join as new members; the group waits for those that it remembers until their sessions
have ended, counted from the start of the broker.
"""

import pytest
from outage_support import TOPIC, outage

from millstream.testing import Broker

pytestmark = [pytest.mark.process, pytest.mark.slow]

KILLS = 3


@pytest.mark.parametrize("shards", [1, 2])
def test_groups_of_both_protocols_come_back_after_each_kill_and_miss_nothing(shards):
    settings = {"group.initial.rebalance.delay.ms": 0}
    with Broker(topics={TOPIC: 4}, settings=settings, shards=shards) as broker, outage(broker) as clients:
        clients.until_all_read_on()
        for kill in range(KILLS):
            clients.until_all_commit()
            broker.kill()
            if kill % 2:
                clients.until_a_session_ended()
            broker.restart()
            took_s = clients.until_all_read_on()
            print(f"kill {kill}: read on after {took_s}")
            assert clients.offsets_went_back() == []
        clients.finish()

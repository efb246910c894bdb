"""Whole requests of every API in sequences, over several connections at once, about topics of every kind: no process of
the broker ends, its log has no ERROR line, memory stays in its budget, and it starts again on what they leave.
"""

import pytest
from bench import processes, raw
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from hostile_support import BUDGET_BYTES, CONSTANT_BYTES
from sequences_support import SETTINGS, TOPICS, errors, fuzz_sequences, id_of

pytestmark = pytest.mark.process


@pytest.fixture
def spoken_to(start_broker, tmp_path):
    settings = {**SETTINGS, "objects.url": f"file://{tmp_path}/objects"}
    broker = start_broker(topics={"steady": 1}, settings=settings, shards=2, memory=str(2 * BUDGET_BYTES))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic(name, 2, 1, config=how) for name, how in TOPICS.items()]).values():
        made.result(60)
    found = admin.describe_topics(TopicCollection(list(TOPICS)))
    return broker, fuzz_sequences.Remembering({name: id_of(future.result(60)) for name, future in found.items()})


def stands(broker, world, seed, connections, requests):
    """Let them speak; how many APIs have answered."""
    alive = set(processes.tree(broker.pid))
    speakers = fuzz_sequences.Speakers(world, broker.bootstrap)
    with raw.Caller(broker.bootstrap) as caller:
        offset = caller.produce_one("steady", 0, raw.batch([b"before"]))
    speakers.speak(seed, connections, requests)
    print(f"seed {seed}: {speakers.answered.total()} answers of {len(speakers.answered)} APIs")
    assert alive <= set(processes.tree(broker.pid)), "a process of the broker has ended"
    assert not errors(broker)
    held = processes.pss_bytes(broker.pid)
    assert held <= 2 * BUDGET_BYTES + CONSTANT_BYTES, f"{held >> 20} MiB held"
    broker.restart()
    with raw.Caller(broker.bootstrap) as caller:
        assert caller.produce_one("steady", 0, raw.batch([b"after"])) > offset
    assert broker.stop() == 0
    assert not errors(broker)
    return len(speakers.answered)


def test_sequences_of_whole_requests_end_no_broker(spoken_to, fresh_seed):
    assert stands(*spoken_to, fresh_seed, connections=4, requests=60) > 20


@pytest.mark.slow
@pytest.mark.ci
def test_ten_thousand_whole_requests_in_sequences_end_no_broker(spoken_to, fresh_seed):
    assert stands(*spoken_to, f"long-{fresh_seed}", connections=8, requests=1250) > 60

"""Topics of many partitions under load, for tests of shared topics whose store fails."""

from contextlib import contextmanager

from confluent_kafka.admin import NewTopic
from crash_workload import Workload
from shared_cluster_support import leader
from shared_support import SHARED
from tiering import ask

from waits import until


@contextmanager
def load(bootstrap, topic, partitions, **more):
    """Clients on a topic; at the end everything is read once more, and the history is judged."""
    workload = Workload(bootstrap, topic, partitions, **more)
    try:
        workload.start()
        workload.wait_progress(200)
        yield workload
        workload.finish()
    finally:
        workload.give_up()


def create_wide(made, name, layout):
    one = made.brokers[1]
    ask(one, "create_topics", [NewTopic(name, len(layout), replica_assignment=layout, config=SHARED)], name)
    until(lambda: all(leader(one, name, at) in nodes for at, nodes in enumerate(layout)), "a partition has no leader")

"""Millstream for tests: the real broker on a temporary directory, in under a second.

::

    from millstream.testing import broker

    with broker(topics={"orders": 3}) as b:
        producer = Producer({"bootstrap.servers": b.bootstrap})
        audit = b.new_topic(partitions=2)  # a name that no other test has

A cluster of several brokers, of which some may die::

    from millstream.testing import cluster

    with cluster(3) as c:
        producer = Producer({"bootstrap.servers": c.bootstrap})
        c.kill(2)
        c.partition({1}, {3})

The pytest plugin (installed with the package) has two fixtures: ``broker``, one broker for the whole session, and
``broker_factory``, which starts any number and stops them when the test ends.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.testing.clusters import Cluster, cluster
    from millstream.testing.process import Broker, BrokerFailed, broker

__all__ = ["Broker", "BrokerFailed", "Cluster", "broker", "cluster"]


def __getattr__(name: str) -> Any:
    """Import on first use: the pytest plugin is in this package and imported in every test session."""
    if name in __all__:
        from millstream.testing import clusters, process

        return getattr(clusters if name in ("Cluster", "cluster") else process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Transactions in one process from one seed: the production cores of coordinator and partition between unruly clients.

::

    clients ──init, add, produce, end──► network ──► Coordinators: core.txn.coordinator, coordinator.marker_sender
                                 (late, lost,    ──► Data: core.producer_state, core.txn.partition_state
                                  twice)                  every append, every marker, every read ──► Judge

    world     time, network, faults, heal                 clients   producers, zombies included
    parts     coordinators and partitions                 judge     what must hold
    planted   bugs put in on purpose

Everything random comes from the seed. Requests of clients are lost, arrive late and twice, so that an EndTxn or a
Produce of one transaction comes in the middle of the next. The coordinator fails over at any time, also between a
decision and its markers, and the markers of the one before still arrive. Partitions are rebuilt from a snapshot and
their log. A producer's successor starts while the producer still writes. In the end everything is healed, and all that
is open has to end.

What is absent: groups, segment files, the replication of a log. `sim.brokers` has those.
"""

from sim.engine.violation import Violation
from sim.transactions.world import World, run

__all__ = ["Violation", "World", "run"]

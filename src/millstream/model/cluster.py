"""Identifiers of a cluster's brokers, as every layer uses them."""

from typing import Final, NewType

NodeId = NewType("NodeId", int)
"""A broker's id: Kafka's ``node.id`` and ``broker.id``, from 0."""

Incarnation = NewType("Incarnation", bytes)
"""The identity of a broker's disk: 16 random bytes, made once with the data directory. Another disk is another member
of every Raft group, also under the same `NodeId`.
"""

BrokerEpoch = NewType("BrokerEpoch", int)
"""One registration of a broker: the controller's revision after it. A later registration has a higher epoch."""

Revision = NewType("Revision", int)
"""Commands of the controller's log that a state has applied; also the offset of the next command."""

FeatureLevel = NewType("FeatureLevel", int)
"""Which commands the brokers of a cluster may expect in the controller's log; it only grows."""

INCARNATION_BYTES = 16

UNKNOWN: Final = -1
"""In the place of a leader's node: the replica on this broker hears none."""
LOST: Final = -2
"""In the place of a leader's node: the replica on this broker has heard none for some seconds; others may know more."""

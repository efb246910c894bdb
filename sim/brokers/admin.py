"""An administrator of simulated brokers: makes topics, writes to them, moves their replicas, and deletes them.

==  ==================================================================================================================
E1  Brokers that applied the same commands of the controller have the same state.
E2  A topic exists from the answer that it was made to its deletion, on every broker.
E3  A reassignment loses nothing that was acknowledged, and ends after a heal: then the members of each Raft group are
    the replicas that the metadata say.
==  ==================================================================================================================

With ``moves`` a topic has two or three replicas, which move to other brokers while clients write and records are
deleted, so that a broker that comes in is sent entries or files. A move is changed or taken back on its way, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.core.controller.requests import (
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    ReassignPartition,
    ReassignPartitions,
    SetReplicationFactor,
    TopicReference,
)
from millstream.model.quantities import RaftGroupId
from millstream.model.replication import node_of
from sim.brokers.clients import Client, idempotent_batch
from sim.brokers.controlled import CONTROLLER_GROUP
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.controller.requests import AnyRequest
    from sim.brokers.controlled import ControlledBroker
    from sim.brokers.world import Cluster
    from sim.engine.requests import Produced


class _Writer(Client):
    """Writes to the topics of an administrator, one request at a time."""

    def to(self, group: RaftGroupId) -> None:
        """Write to this Raft group from now on."""
        if group != self._group:
            self._group, self.history = group, self.cluster.history_of(group)
            self.disconnect()
        if not self.connected:
            self.connect()


class Admin(Client):
    """Makes topics, appends to them, moves and deletes them; what it was answered has to hold.

    Invariants: each topic of ``made`` exists, none of ``gone`` does; about others nothing is known.
    """

    def __init__(self, cluster: Cluster, timeout_us: int, *, moves: bool) -> None:
        super().__init__(cluster, "admin", CONTROLLER_GROUP, timeout_us)
        self.made: list[str] = []
        self.gone: list[str] = []
        self._moves = moves
        self._writer = _Writer(cluster, "admin's writer", CONTROLLER_GROUP, timeout_us)
        self._count = 0
        self._busy = self._writes = False

    def poll(self) -> bool:
        """Do something; false while an answer is awaited."""
        if self._busy:
            return False
        what = self.chance.random()
        if (what < 0.3 and (not self._moves or len(self.made) < 3)) or not self.made:
            self.create()
        elif what < (0.33 if self._moves else 0.5):
            self._delete(self.made.pop(self.chance.randrange(len(self.made))))
        elif what < 0.6 and self._moves:
            self._move(self.chance.choice(self.made))
        elif not self._writes:
            self._append(self.chance.choice(self.made))
        return True

    def try_to_create(self) -> None:
        """Make another topic unless a request is pending."""
        if not self._busy:
            self.create()

    def create(self) -> None:
        """Make another topic, on all brokers or on two or three of them."""
        self._count += 1
        name = f"x{self._count}"
        configs = (("retention.ms", "-1"),)  # the timestamps of batches are numbers here
        factor = self.chance.choice((2, 3)) if self._moves else len(self.cluster.brokers)
        request = CreateTopics((CreateTopic(name, 1, factor, configs=configs),))

        def done() -> None:
            self.history.seen["topic made"] += 1
            self.made.append(name)

        self._submit(request, done)

    def _delete(self, name: str) -> None:
        def done() -> None:
            self.history.seen["topic deleted"] += 1
            self.gone.append(name)

        self._submit(DeleteTopics((TopicReference(name),)), done)

    def _move(self, name: str) -> None:
        what = self.chance.random()
        nodes = [node_of(replica) for replica in self.cluster.brokers]
        target = tuple(self.chance.sample(nodes, self.chance.choice((2, 3))))
        request: AnyRequest = ReassignPartitions((ReassignPartition(name, 0, target if what < 0.7 else None),))
        if what > 0.85:
            request = SetReplicationFactor(name, len(target))

        def done() -> None:
            self.history.seen["move asked for"] += 1

        self._submit(request, done)

    def _submit(self, request: AnyRequest, done: Callable[[], None]) -> None:
        def answered(answer: tuple[int, str] | None) -> None:
            if answer is None or answer[0]:
                self.history.seen[f"admin: {'no answer' if answer is None else answer[1][:40]}"] += 1
                self.disconnect()
            else:
                done()
            self._busy = False

        def serve(broker: Any, reply: Callable[[Any], None]) -> None:
            broker.submit(request, reply)

        if not self.connected:
            self.connect()
        self._busy = True
        self.ask(serve, answered)

    def _append(self, name: str) -> None:
        """Write a batch, or delete all records now and then, on the broker that leads the partition."""
        group = next((found for one in self._brokers() if (found := _group_of(one, name)) is not None), None)
        if group is None:
            return
        self._count += 1
        value, writer, trims = self._count, self._writer, self._moves and self.chance.random() < 0.15
        batch = idempotent_batch(value, 1, self.chance.randrange(500), -1, -1)
        writer.to(group)
        history = writer.history
        history.sent.add(value)
        self._writes = True

        def answered(answer: Produced | tuple[int] | None) -> None:
            self._writes = False
            if answer is None or answer[0]:
                writer.disconnect()
            elif len(answer) == 1:
                self.history.seen["records of a made topic deleted"] += 1
            else:
                self.history.seen["batch in a made topic"] += 1
                history.on_acknowledged(value, answer.base_offset, answer.base_offset + 1, answer.term)

        def serve(broker: Any, reply: Callable[[Any], None]) -> None:
            if trims:
                broker.trim_topic(name, reply)
            else:
                broker.append_to_topic(name, batch, reply)

        writer.ask(serve, answered)

    def _brokers(self) -> list[ControlledBroker]:
        brokers: list[Any] = [one for one in self.cluster.brokers.values() if one.is_up]
        return brokers

    # At a heal

    def check(self) -> None:
        """Everybody has applied the same, and what this client was answered (E1, E2, E3)."""
        brokers = self._brokers()
        first = brokers[0].cache
        for broker in brokers:
            cache = broker.cache
            if cache.revision != first.revision or cache.state != first.state:
                raise Violation(f"E1: {broker.replica} has another state at revision {cache.revision}")
            for name in self.made:
                if cache.topic(name) is None:
                    raise Violation(f"E2: {broker.replica} does not know topic {name}, which was made")
            for name in self.gone:
                if cache.topic(name) is not None:
                    raise Violation(f"E2: {broker.replica} has topic {name}, which was deleted")
        for topic in first.topics():
            part = topic.partitions[0]
            here = {node_of(one.replica) for one in brokers if part.raft_group in one.raft.groups}
            if here != set(part.replicas):
                raise Violation(f"E3: brokers {sorted(here)} hold {topic.name}, {part.replicas} shall")

    def applied(self) -> bool:
        """Whether every broker has applied everything that is committed."""
        brokers = self._brokers()
        end = brokers[0].controller_group.committed_offset
        return all(one.cache.revision == one.controller_group.committed_offset == end for one in brokers)

    def moved(self) -> bool:
        """Whether no move is running, as far as any broker knows."""
        return self.applied() and not any(one.cache.state.moves for one in self._brokers())

    def moving(self) -> list[object]:
        """The moves that run, for a person."""
        return [(one.replica, one.cache.revision, dict(one.cache.state.moves)) for one in self._brokers()]


def _group_of(broker: ControlledBroker, name: str) -> RaftGroupId | None:
    topic = broker.cache.topic(name)
    return None if topic is None else RaftGroupId(topic.partitions[0].raft_group)

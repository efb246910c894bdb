"""Members of one share group on a cluster, by raw requests: each is a thread that writes down what it got and said."""

import random
import threading
import time

from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from millstream.wire.messages.share_fetch import (
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareForgottenTopic,
)
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from raw_line import Line
from share_history import Delivered, Left, Lost, Said

GROUP, TOPIC = "workers", "t"
ACCEPT, RELEASE, REJECT = 1, 2, 3
BROKEN = (OSError, AssertionError)
"""What a line raises when its broker dies."""


class Addresses:
    """The brokers that may live, with a number that grows with each start of one."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.starts = dict.fromkeys(cluster.brokers, 0)
        self.alive = set(cluster.brokers)

    def all(self):
        return [(node, self.starts[node], self._cluster.brokers[node].bootstrap) for node in sorted(self.alive)]

    def line(self, node):
        """(a line, number of the start), or None."""
        for each, start, address in self.all():
            if each == node:
                return Line(address), start
        return None

    def any(self, ask):
        """The first answer that is true of any broker; None if there is none."""
        for _, _, address in self.all():
            try:
                with Line(address) as line:
                    if found := ask(line):
                        return found
            except BROKEN:
                continue
        return None

    def topic(self, line):
        """(topic id, partition → (leader, epoch)) as a broker knows it."""
        (topic,) = line.ask(MetadataRequest([MetadataRequestTopic(name=TOPIC)])).topics
        if topic.error_code:
            return None
        return topic.topic_id, {one.partition_index: (one.leader_id, one.leader_epoch) for one in topic.partitions}

    def coordinator(self, group=GROUP):
        """Node of the group's coordinator."""

        def ask(line):
            (found,) = line.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group])).coordinators
            return None if found.error_code else (found.node_id,)

        found = self.any(ask)
        return None if found is None else found[0]

    def starts_of(self, group=GROUP):
        """partition → (start, lag) as the group's coordinator knows it; None if it does not."""
        node = self.coordinator(group)
        try:
            if node is None or (found := self.line(node)) is None:
                return None
            with found[0] as line:
                asked = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsGroup(group, None)])
                (described,) = line.ask(asked).groups
        except BROKEN:
            return None
        parts = [one for topic in described.topics for one in topic.partitions]
        if described.error_code or any(one.error_code for one in parts):
            return None
        return {one.partition_index: (one.start_offset, one.lag) for one in parts}


class _Session:
    """A share session of a member on one broker."""

    def __init__(self, line, node, start):
        self.line = line
        self.broker = (node, start)
        self.epoch = 0
        self.has = set()
        self.held = []
        """(partition, first, last)"""


class Member(threading.Thread):
    """One member. ``drains``: it accepts everything from now on. ``stop`` ends it."""

    def __init__(self, name, addresses, history, seed):
        super().__init__(name=name, daemon=True)
        self.addresses, self.history = addresses, history
        self.drains = False
        self.failure = None
        self._chance = random.Random(f"{seed} {name}")
        self._ended = threading.Event()
        self._epoch = 0
        self._group_line = None
        self._assigned = set()
        self._topic_id = None
        self._sessions = {}

    def stop(self):
        self._ended.set()

    def run(self):
        try:
            while not self._ended.is_set():
                self._round()
        except BaseException as error:  # the test shows it
            self.failure = error
            raise
        finally:
            for session in self._sessions.values():
                session.line.sock.close()
            if self._group_line is not None:
                self._group_line.sock.close()

    def _round(self):
        self._heartbeat()
        found = self.addresses.any(self.addresses.topic)
        if found is None:
            self._ended.wait(0.1)
            return
        self._topic_id, leaders = found
        wanted = {}
        for partition in self._assigned:
            wanted.setdefault(leaders[partition][0], set()).add(partition)
        for node in {*wanted, *self._sessions}:
            self._use(node, wanted.get(node, set()))
        if not wanted:
            self._ended.wait(0.1)

    # Membership

    def _heartbeat(self):
        try:
            if self._group_line is None:
                node = self.addresses.coordinator()
                found = None if node is None else self.addresses.line(node)
                if found is None:
                    return
                self._group_line = found[0]
            names = [TOPIC] if self._epoch == 0 else None
            answer = self._group_line.ask(ShareGroupHeartbeatRequest(GROUP, self.name, self._epoch, None, names))
        except BROKEN:
            self._forget_coordinator()
            return
        if answer.error_code:
            self._forget_coordinator()
            if answer.error_code in (25, 110):  # it is not a member, or its epoch is fenced
                self._epoch = 0
            return
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self._assigned = {index for topic in answer.assignment.topic_partitions for index in topic.partitions}

    def _forget_coordinator(self):
        if self._group_line is not None:
            self._group_line.sock.close()
            self._group_line = None

    # Fetching

    def _use(self, node, wanted):
        """One fetch of the partitions that a broker leads."""
        session = self._sessions.get(node)
        if session is None:
            if not wanted:
                return
            try:
                found = self.addresses.line(node)
            except OSError:
                return
            if found is None:
                return
            session = self._sessions[node] = _Session(found[0], node, found[1])
        if (not wanted and not session.held) or (not self.drains and self._chance.random() < 0.01):
            self._end(node)
            return
        try:
            self._fetch(session, wanted)
        except BROKEN:
            self._end(node)

    def _end(self, node):
        session = self._sessions.pop(node)
        self.history.add(Left(self.name, session.broker, time.monotonic()))
        session.line.sock.close()

    def _leads(self, session):
        """partition → leadership, as the broker of a session knows it."""
        found = self.addresses.topic(session.line)
        if found is None:
            return {}
        node = session.broker[0]
        return {index: (session.broker, epoch) for index, (leader, epoch) in found[1].items() if leader == node}

    def _leads_if_it_lives(self, session):
        """The same of a broker that may have died behind its last answer, which counts all the same."""
        try:
            return self._leads(session)
        except BROKEN:
            return {}

    def _fetch(self, session, wanted):
        says = self._decide(session)
        if says and (not wanted or self._chance.random() < 0.5):
            self._acknowledge(session, says)
            says = []
            if not wanted:
                return
        if session.epoch == 0 and says:
            self._acknowledge(session, says)  # not possible in the first fetch of a session
            says = []
        before = self._leads(session)
        batches = _batches(says)
        parts = [
            ShareFetchPartition(index, batches.get(index, [])) for index in sorted({*(wanted - session.has), *batches})
        ]
        forgotten = sorted(session.has - wanted - set(batches))
        request = ShareFetchRequest(
            GROUP,
            self.name,
            session.epoch,
            300,
            1,
            1 << 20,
            self._chance.choice((1, 5, 20, 100)),
            self._chance.choice((1, 10, 100)),
            topics=[ShareFetchTopic(self._topic_id, parts)] if parts else [],
            forgotten_topics_data=[ShareForgottenTopic(self._topic_id, forgotten)] if forgotten else [],
            share_acquire_mode=self._chance.choice((0, 1)),
        )
        session.has = (session.has | wanted | set(batches)) - set(forgotten)
        began = time.monotonic()
        try:
            answer = session.line.ask(request, 2)
        except BROKEN:
            self.history.add(Lost(frozenset(session.has)))
            self._said(says, before, began, None)
            raise
        ended = time.monotonic()
        if answer.error_code:
            self._said(says, before, began, answer.error_code)
            raise OSError(f"the session was refused: {answer.error_code}")
        session.epoch += 1
        after = self._leads_if_it_lives(session)
        errors = {}
        for topic in answer.responses:
            for one in topic.partitions:
                errors[one.partition_index] = one.acknowledge_error_code
                lead = before.get(one.partition_index)
                lead = lead if lead == after.get(one.partition_index) else None
                for each in one.acquired_records:
                    first, last = each.first_offset, each.last_offset
                    self.history.add(
                        Delivered(self.name, lead, one.partition_index, first, last, each.delivery_count, began, ended)
                    )
                    session.held.append((one.partition_index, first, last))
        self._said(says, before, began, errors)

    def _decide(self, session):
        """(partition, first, last, kind) of some of what is held."""
        chance, says, kept = self._chance, [], []
        for partition, first, last in session.held:
            if not self.drains and chance.random() < 0.1:
                if chance.random() < 0.7:
                    kept.append((partition, first, last))
                continue  # otherwise it is held until its lock ends
            middle = last if self.drains or last - first < 2 or chance.random() < 0.7 else chance.randint(first, last)
            kind = ACCEPT if self.drains else chance.choices((ACCEPT, RELEASE, REJECT), (8, 1.5, 0.5))[0]
            says.append((partition, first, middle, kind))
            if middle < last:
                says.append((partition, middle + 1, last, RELEASE))
        session.held = kept
        return sorted(says)

    def _acknowledge(self, session, says):
        if session.epoch == 0:
            return
        before = self._leads(session)
        parts = [AcknowledgePartition(index, batches) for index, batches in _batches(says).items()]
        request = ShareAcknowledgeRequest(
            GROUP, self.name, session.epoch, topics=[AcknowledgeTopic(self._topic_id, parts)]
        )
        began = time.monotonic()
        try:
            answer = session.line.ask(request, 2)
        except BROKEN:
            self._said(says, before, began, None)
            raise
        if answer.error_code:
            self._said(says, before, began, answer.error_code)
            raise OSError(f"the session was refused: {answer.error_code}")
        session.epoch += 1
        errors = {one.partition_index: one.error_code for topic in answer.responses for one in topic.partitions}
        self._said(says, before, began, errors)

    def _said(self, says, leads, began, errors):
        """``errors`` by partition, or of all; None: there was no answer."""
        ended = time.monotonic()
        for partition, first, last, kind in says:
            error = errors.get(partition) if isinstance(errors, dict) else errors
            self.history.add(Said(self.name, leads.get(partition), partition, first, last, kind, began, ended, error))


def _batches(says):
    """partition → batches of a request."""
    found = {}
    for partition, first, last, kind in sorted(says):
        found.setdefault(partition, []).append(AcknowledgementBatch(first, last, [kind]))
    return found

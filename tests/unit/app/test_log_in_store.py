"""A broker whose log is in the store: when it begins to write, what it tells the controller, when it starts again."""

from types import SimpleNamespace

import pytest

from millstream.app.log_in_store import LOOK_US, LogInStore
from millstream.cluster.messages import IN_STORE
from millstream.core.controller.commands import RESTORING_PARTITIONS
from millstream.partition.table import Faulty, Restoring, Waiting


class Wal:
    def __init__(self):
        self.begun = self.stopped = self.is_complete = False

    def begin(self):
        self.begun = True

    def stop(self):
        self.stopped = True


class Broker:
    """The shards of one broker, whose mailboxes deliver at once, and a clock."""

    def __init__(self, shards=2, *, known=False, level=RESTORING_PARTITIONS):
        self.now_us, self.later, self.requests, self.again, self.handlers = 0, [], [], [], {}
        profile = SimpleNamespace(log_in_store=known)
        self.state = SimpleNamespace(
            registry=SimpleNamespace(brokers={1: SimpleNamespace(epoch=7, profile=profile)}), feature_level=level
        )
        self.metadata = SimpleNamespace(node_id=1, state=self.state)
        self.controller = SimpleNamespace(on_taken=None, submit=lambda request, _: self.requests.append(request))
        self.wals = [Wal() for _ in range(shards)]
        self.tables = [SimpleNamespace(by_id={}) for _ in range(shards)]
        self.parts = [
            LogInStore(
                SimpleNamespace(id=at, count=shards, mailbox=self.mailbox(at), reactor=self),
                self.tables[at],
                self.wals[at],
                self.metadata,
                self.controller if at == 0 else None,
                self.again.append,
            )
            for at in range(shards)
        ]

    def mailbox(self, shard):
        def serve(message, handler):
            self.handlers[shard, message] = handler

        def tell(other, message, payload):
            self.handlers[other, message](shard, payload, None)

        return SimpleNamespace(serve=serve, tell=tell)

    def call_later(self, delay_us, callback):
        self.later.append((self.now_us + delay_us, callback))

    def wait(self, delay_us=LOOK_US):
        self.now_us += delay_us
        due, self.later = (
            [one for one in self.later if one[0] <= self.now_us],
            [one for one in self.later if one[0] > self.now_us],
        )
        for _, callback in due:
            callback()


def test_no_shard_writes_before_the_broker_is_registered():
    broker = Broker()
    assert not any(wal.begun for wal in broker.wals)
    broker.parts[0].registered()
    assert all(wal.begun for wal in broker.wals)


def test_the_controller_hears_of_it_when_every_shard_is_complete_until_it_knows():
    broker = Broker()
    broker.parts[0].registered()
    broker.wals[0].is_complete = True
    broker.wait()
    assert broker.requests == []
    broker.wals[1].is_complete = True
    broker.wait()
    assert [(one.node, one.epoch) for one in broker.requests] == [(1, 7)]
    broker.wait()
    assert len(broker.requests) == 2, "the first one was refused"
    broker.state.registry.brokers[1].profile.log_in_store = True
    broker.wait()
    broker.wait()
    assert len(broker.requests) == 2 and not broker.later


def test_it_speaks_of_its_own_registration():
    broker = Broker(shards=1)
    broker.wals[0].is_complete = True
    broker.state.registry.brokers[1].epoch = 8
    broker.parts[0].registered()
    broker.state.registry.brokers[1].epoch = 9  # another start of the same broker
    broker.wait()
    assert {one.epoch for one in broker.requests} == {8}


def test_nothing_is_said_to_a_cluster_that_is_being_upgraded_or_that_knows():
    broker = Broker(shards=1, level=RESTORING_PARTITIONS - 1)
    broker.wals[0].is_complete = True
    broker.parts[0].registered()
    broker.wait()
    assert broker.requests == []
    broker.state.feature_level = RESTORING_PARTITIONS
    broker.wait()
    assert len(broker.requests) == 1
    known = Broker(shards=1, known=True)
    known.wals[0].is_complete = True
    known.parts[0].registered()
    assert known.requests == [] and not known.later
    known.state.registry.brokers.clear()
    known.parts[0]._note()  # it has left the cluster


@pytest.mark.parametrize(
    ("entry", "blocks"),
    [
        (Faulty("t", 0, 1, "damaged", "/d"), True),
        (Waiting("t", 0, 1, 0, None, "/d"), True),
        (Restoring("t", 0, 1, 0, None, "/d", None), False),
    ],
)
def test_a_partition_whose_files_are_not_opened_may_have_what_the_store_has_not(entry, blocks):
    broker = Broker(shards=1)
    broker.tables[0].by_id[bytes(16)] = [entry]
    broker.wals[0].is_complete = True
    broker.parts[0].registered()
    assert (broker.requests == []) is blocks
    broker.tables[0].by_id.clear()
    broker.wait()
    assert broker.requests


def test_a_broker_that_hears_that_it_was_taken_over_writes_and_removes_nothing_more_and_starts_again():
    broker = Broker()
    broker.parts[0].registered()
    broker.controller.on_taken()
    assert all(wal.stopped for wal in broker.wals)
    assert len(broker.again) == 1 and "taken over" in broker.again[0]


def test_a_shard_may_say_it_twice():
    broker = Broker()
    broker.parts[0].registered()
    for _ in range(2):
        broker.handlers[0, IN_STORE](1, b"", None)
    assert broker.requests == []

"""The share partitions of a shard: what one fetch takes of several of them."""

from types import SimpleNamespace

import pytest

from millstream.core.share.partition import Acquired, Request
from millstream.model.error_code import ErrorCode
from millstream.share import home
from millstream.share.home import FetchAsk, SharePartitions
from millstream.share.served import Taken
from millstream.telemetry.metrics import StatsSlab

TOPIC = b"t" * 16


class Served:
    """A share partition that has a record or none; ``waits`` notes whether a fetch may wait for it."""

    def __init__(self, waits, key):
        self.waits = waits
        self.index = key[2]

    def fetch(self, request, max_bytes, waiter, done, *, may_wait):
        _ = request, max_bytes, waiter
        self.waits.append(may_wait)
        done(Taken(ErrorCode.NONE, [Acquired(0, 0, 1)] if self.index else []))


@pytest.mark.parametrize(
    ("indexes", "holds", "waits"),
    [([0, 1, 2, 0], False, [True, True, False, False]), ([0, 0], False, [True, True]), ([0], True, [False])],
    ids=["behind-records", "nothing-so-far", "another-shard-gave"],
)
def test_a_fetch_that_holds_records_waits_for_no_share_partition(monkeypatch, indexes, holds, waits):
    seen = []
    monkeypatch.setattr(home, "ServedPartition", lambda key, *_: Served(seen, key))
    mailbox = SimpleNamespace(serve=lambda *_: None)
    shard = SimpleNamespace(id=0, count=1, mailbox=mailbox, reactor=None, stats=StatsSlab(0))
    partition = SimpleNamespace(refusal=ErrorCode.NONE, group=SimpleNamespace(is_serving=True))
    table = SimpleNamespace(by_group={7: partition}, on_close=lambda _: None)
    partitions = SharePartitions(shard, table, None, None)
    places = [(("g", TOPIC, index), 7) for index in indexes]
    taken = []
    partitions.fetch(0, FetchAsk(Request("m", 1, 500), 1000, places, holds), taken.extend)
    assert len(taken) == len(indexes)
    assert seen == waits

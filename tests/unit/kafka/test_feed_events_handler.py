"""FeedEvents: what a consumer grants is bounded before it reaches the shard that has the partition, and a feed waits no
longer than its connection lasts.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.kafka.handlers.events.feed_events import MAX_WAIT_MS, handle
from millstream.model.quantities import Offset
from millstream.net.connection import Exchange
from millstream.net.parking import Parking
from millstream.partition.events.feeds import Fed, FeedAsk
from millstream.partition.events.home import EventsHome
from millstream.partition.table import Remote
from millstream.telemetry.metrics import StatsSlab
from millstream.wire.messages.feed_events import FeedEventsRequest


@pytest.mark.parametrize(
    ("asked_ms", "waited_ms"), [(-(2**31), 0), (-1, 0), (0, 0), (1500, 1500), (2**31 - 1, MAX_WAIT_MS)]
)
def test_the_time_that_a_consumer_grants_is_bounded(asked_ms: int, waited_ms: int):
    asks: list[FeedAsk] = []
    ends: list[bool] = []

    def ended() -> None:
        ends.append(True)

    def find(topic: bytes, index: int) -> Remote:
        return Remote("t/0", index, 7, 1)

    def feed(entry: Remote, ask: FeedAsk, done: object) -> Callable[[], None]:
        asks.append(ask)
        return ended

    node = SimpleNamespace(partitions=SimpleNamespace(find=find), events=SimpleNamespace(feed=feed))
    request = FeedEventsRequest(topic_id=bytes(16), partition_index=0, max_wait_ms=asked_ms)
    parking = Parking(0, lambda: None)
    connection = SimpleNamespace(intake=SimpleNamespace(parking=parking))
    ctx = cast(Any, Exchange(cast(Any, connection)))
    handle(cast(Any, node), ctx, request)
    assert [ask.max_wait_ms for ask in asks] == [waited_ms]
    assert parking.end(ctx) and ends == [True], "the end of the connection ends the feed"


@pytest.mark.parametrize("refused", [False, True])
def test_a_feed_of_another_shard_is_cancelled_there(refused: bool):
    cancelled: list[int] = []
    mailbox = SimpleNamespace(serve=lambda *_: None, call=lambda *_: 0 if refused else 5, cancel=cancelled.append)
    shard = SimpleNamespace(mailbox=mailbox, stats=StatsSlab())
    answers: list[Fed] = []
    home = EventsHome(cast(Any, shard), cast(Any, None), cast(Any, None))
    ask = FeedAsk(7, 1, -1, Offset(0), 1, 1, 60_000, False)
    home.feed(Remote("t/0", 0, 7, 1), ask, lambda fed, *_: answers.append(fed))()
    assert (cancelled, answers) == (([], []) if refused else ([5], [Fed()]))

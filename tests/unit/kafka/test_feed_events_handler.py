"""FeedEvents: what a consumer grants is bounded before it reaches the shard that has the partition."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.kafka.handlers.events.feed_events import MAX_WAIT_MS, handle
from millstream.partition.events.feeds import FeedAsk
from millstream.partition.table import Remote
from millstream.wire.messages.feed_events import FeedEventsRequest


@pytest.mark.parametrize(
    ("asked_ms", "waited_ms"), [(-(2**31), 0), (-1, 0), (0, 0), (1500, 1500), (2**31 - 1, MAX_WAIT_MS)]
)
def test_the_time_that_a_consumer_grants_is_bounded(asked_ms: int, waited_ms: int):
    asks: list[FeedAsk] = []

    def find(topic: bytes, index: int) -> Remote:
        return Remote("t/0", index, 7, 1)

    def feed(entry: Remote, ask: FeedAsk, done: object) -> None:
        asks.append(ask)

    node = SimpleNamespace(partitions=SimpleNamespace(find=find), events=SimpleNamespace(feed=feed))
    request = FeedEventsRequest(topic_id=bytes(16), partition_index=0, max_wait_ms=asked_ms)
    handle(cast(Any, node), cast(Any, SimpleNamespace(connection=object())), request)
    assert [ask.max_wait_ms for ask in asks] == [waited_ms]

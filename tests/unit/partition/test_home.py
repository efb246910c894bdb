"""The hop between shards: what one shard keeps of another's reads."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from millstream.core.fetch_session import SessionPartition
from millstream.errors import MillstreamError, OutcomeUnknown, Retriable
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.partition.home import READ, Home
from millstream.partition.read import refused
from millstream.partition.table import PartitionTable, Remote
from millstream.partition.watch import Watch
from millstream.wire.messages.fetch import FetchPartition

OTHER = 1
GROUP = 7
NUMBER = 5


def home_with(partition: Any) -> tuple[Home, Any]:
    """A home with one partition, and its handler of reads."""
    handlers: dict[int, Any] = {}
    mailbox = SimpleNamespace(serve=handlers.__setitem__, lend=None)
    table = PartitionTable()
    table.by_group[GROUP] = partition
    shard = SimpleNamespace(mailbox=mailbox)
    return Home(cast(Any, shard), table, cast(Any, None), cast(Any, None)), handlers[READ]


def test_a_reader_that_goes_back_from_the_end_leaves_no_watch_behind() -> None:
    """It reads a quiet partition again and again: the other shard forgets its watch with every answer that has data."""
    log = SimpleNamespace(start_offset=0, read=lambda *_: IoBuf())
    partition = SimpleNamespace(log=log, high_watermark=10, closed=False, data_waiters=set())
    home, serve = home_with(partition)
    answers: list[bytes] = []
    reply = cast(Any, SimpleNamespace(send=lambda payload, loans: answers.append(payload)))
    for offset, waiting in ((10, 1), (0, 0), (10, 1), (11, 0)):
        read = (GROUP, offset, 1000, -1, -1, NUMBER)
        serve(OTHER, msgspec.msgpack.encode((1000, True, False, [read])), reply)
        assert len(partition.data_waiters) == len(home._armed) == waiting
    assert len(answers) == 4


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), Retriable("too many calls")])
def test_a_read_that_is_not_answered_is_to_be_tried_again(error: MillstreamError) -> None:
    """Consumers know few errors of a fetch, and a time that ran out is none of them."""
    home, _ = home_with(None)
    cast(Any, home)._mailbox.call = lambda to, method, payload, on_reply, timeout_us: on_reply(error)
    asked = SessionPartition("t", bytes(16), FetchPartition(0))
    told: list[Any] = []
    call = cast(Any, SimpleNamespace(take_many=told.extend, watch=Watch))
    home.read(OTHER, [(asked, Remote("t", 0, GROUP, OTHER))], 1000, call, minimum_one=True, gather=False)
    assert told == [(asked, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))]

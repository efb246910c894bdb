"""The hop between shards: what one shard keeps of another's reads."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from millstream.iobuf import IoBuf
from millstream.partition.home import READ, Home
from millstream.partition.table import PartitionTable

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

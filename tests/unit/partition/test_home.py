"""The hop between shards: what one shard keeps of another's reads."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from append_support import batch, make

from millstream.core.fetch_session import SessionPartition
from millstream.errors import MillstreamError, OutcomeUnknown, Retriable
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.partition.append.admission import Admission
from millstream.partition.hop.home import APPEND, READ, Home
from millstream.partition.read.batches import refused
from millstream.partition.read.watch import Watch
from millstream.partition.table import PartitionTable, Remote
from millstream.partition.waiters import Waiters
from millstream.wire.messages.fetch import FetchPartition

OTHER = 1
GROUP = 7
NUMBER = 5


def home_with(partition: Any, method: int = READ, storage: Any = None) -> tuple[Home, Any]:
    """A home with one partition, and its handler of reads, or of what ``method`` says."""
    handlers: dict[int, Any] = {}
    loans = SimpleNamespace(lend=None, give_back=lambda lender, token: None)
    mailbox = SimpleNamespace(serve=handlers.__setitem__, loans=loans)
    table = PartitionTable()
    table.by_group[GROUP] = partition
    arenas = {OTHER: SimpleNamespace(view=memoryview(bytearray(4096)))}
    reactor = SimpleNamespace(wall_ms=lambda: 1_700_000_000_000)
    shard = SimpleNamespace(mailbox=mailbox, arenas=arenas, reactor=reactor)
    home = Home(cast(Any, shard), table, Admission(cast(Any, reactor), storage))
    return home, handlers[method]


def test_a_reader_that_goes_back_from_the_end_leaves_no_watch_behind() -> None:
    """It reads a quiet partition again and again: the other shard forgets its watch with every answer that has data."""
    log = SimpleNamespace(start_offset=0, next_offset=10, read=lambda *_: IoBuf())
    group = SimpleNamespace(elects=False, knows_committed=True)
    partition = SimpleNamespace(
        log=log,
        group=group,
        high_watermark=10,
        last_stable_offset=10,
        refusal=0,
        gate=0,
        waiters=Waiters(),
        fetched_bytes=0,
    )
    home, serve = home_with(partition)
    answers: list[bytes] = []
    reply = cast(Any, SimpleNamespace(send=lambda payload, loans: answers.append(payload)))
    for offset, waiting in ((10, 1), (0, 0), (10, 1), (11, 0)):
        read = (GROUP, offset, 1000, -1, -1, NUMBER, False)
        serve(OTHER, msgspec.msgpack.encode((1000, True, False, False, 0, [read])), reply)
        assert len(partition.waiters.readers) == len(home.watches._armed) == waiting
    assert len(answers) == 4


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), Retriable("too many calls")])
def test_a_read_that_is_not_answered_is_to_be_tried_again(error: MillstreamError) -> None:
    """Consumers know few errors of a fetch, and a time that ran out is none of them."""
    home, _ = home_with(None)
    cast(Any, home).mailbox.call = lambda to, method, payload, on_reply, timeout_us: on_reply(error)
    asked = SessionPartition("t", bytes(16), FetchPartition(0))
    told: list[Any] = []
    call = cast(Any, SimpleNamespace(take_many=told.extend, watch=Watch))
    modes: dict[str, Any] = {"minimum_one": True, "gather": False, "committed": False, "patience_us": 0}
    home.read(OTHER, [(asked, Remote("t", 0, GROUP, OTHER))], 1000, call, **modes)
    assert told == [(asked, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))]


@pytest.mark.parametrize(
    ("accepts", "stopping", "error"),
    [
        (True, False, ErrorCode.NONE),
        (False, False, ErrorCode.KAFKA_STORAGE_ERROR),
        (True, True, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_full_disk_and_a_shard_that_stops_refuse_what_other_shards_append(
    accepts: bool, stopping: bool, error: ErrorCode
) -> None:
    partition, data = make(write_caching="true"), batch()
    storage = SimpleNamespace(accepts_writes=accepts, stopping=stopping)
    home, serve = home_with(partition, APPEND, storage)
    cast(Any, home)._shard.arenas[OTHER].view[: len(data)] = data
    answers: list[Any] = []
    reply = cast(Any, SimpleNamespace(send=lambda payload: answers.append(msgspec.msgpack.decode(payload))))
    serve(OTHER, msgspec.msgpack.encode([(GROUP, -1, [(0, len(data), 1)], None)]), reply)
    assert len(partition.log.batches) == (not error)
    assert [result[0] for result in answers[0][0]] == [error]

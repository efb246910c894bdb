"""What a fetch holds on to, and lets go of."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.fetch_session import FetchSessions, SessionPartition
from millstream.format.events.batch import build_event_batch
from millstream.iobuf import Arena, IoBuf
from millstream.kafka.handlers.data.fetch import FetchCall
from millstream.model.error_code import ErrorCode
from millstream.partition.meters import Meters
from millstream.partition.read.batches import FetchResult
from millstream.partition.read.watch import Watch
from millstream.partition.waiters import Waiters
from millstream.telemetry.metrics import StatsSlab
from millstream.wire.codec import encode_response_vectored
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse
from millstream.wire.records import build_batch


def parked(*, closed: bool) -> tuple[FetchCall, Any, list[Any]]:
    """A fetch without a session that waits for one quiet partition."""
    asked = SessionPartition("quiet", bytes(16), FetchPartition(0))
    partition = SimpleNamespace(waiters=Waiters())
    answers: list[Any] = []
    context = SimpleNamespace(
        superseded=False,
        incremental=False,
        session_id=0,
        include=lambda *_, **__: True,
        finish=lambda _: 0,
    )
    ctx = SimpleNamespace(
        charge_fetch=lambda size: False,
        fetch_room=lambda room: room,
        connection=SimpleNamespace(closed=closed),
        received_us=0,
        merge=lambda message: message,  # these tests look at messages
        api_version=11,
        respond=answers.append,
        respond_vectored=lambda message, holder: answers.append(message),
    )
    node = SimpleNamespace(
        home=SimpleNamespace(watches=SimpleNamespace(unwatch=None)),
        settings=SimpleNamespace(fetch_max_bytes=1 << 20),
        meters=Meters(StatsSlab()),
        fetch_sessions=FetchSessions(0, 1, 10, lambda n: 0),
        shard=SimpleNamespace(reactor=SimpleNamespace(wall_ms=lambda: 1_800_000_000_000, now_us=lambda: 7_000_000)),
    )
    call = FetchCall(cast(Any, node), cast(Any, ctx), FetchRequest(max_wait_ms=100), cast(Any, context))
    call.results[asked] = FetchResult(0, 0, 0, 0)
    watch = asked.watch = Watch(asked)
    watch.call = call
    watch.arm(cast(Any, partition))
    return call, partition, answers


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_a_fetch_that_ends_watches_nothing_any_more(closed: bool, incremental: bool) -> None:
    """Also one whose client went away, or its session: a quiet partition would keep it for ever."""
    call, partition, answers = parked(closed=closed)
    cast(Any, call.context).incremental = incremental
    assert partition.waiters.readers
    call.answer()
    assert len(answers) == 1
    assert not partition.waiters.readers


@pytest.mark.parametrize(("version", "told"), [(4, 6), (5, 6), (6, 56), (11, 56)])
def test_clients_that_do_not_know_a_storage_error_are_told_to_look_for_the_leader(version: int, told: int) -> None:
    call, _, answers = parked(closed=False)
    cast(Any, call.ctx).api_version = version
    (asked,) = call.results
    call.results[asked] = FetchResult(int(ErrorCode.KAFKA_STORAGE_ERROR))
    call.answer()
    assert [part.error_code for part in answers[0].responses[0].partitions] == [told]


def test_what_is_read_again_counts_once() -> None:
    call, _, _ = parked(closed=False)
    (asked,) = call.results
    arena = Arena.create(0, 1 << 20)
    for size in (300, 310):
        data = IoBuf()
        data.append(arena.allocate(size), 0, size)
        call._put(asked, FetchResult(0, 9, 9, 0, data))
        assert call.size == size
    call._put(asked, FetchResult(0, 10, 10, 0))  # no room to read it once more: what is there stays
    assert call.size == size
    assert call.results[asked].data is not None
    call._release()
    assert arena.live_fragments == 0


def test_sessions_age_by_a_clock_that_nobody_sets() -> None:
    """The wall clock may go back for hours, and no session would give way to a new one that long."""
    call, _, _ = parked(closed=False)
    told: list[int] = []
    cast(Any, call.context).finish = lambda now_ms: told.append(now_ms) or 0
    call.answer()
    assert told == [7_000]


RESULTS = {
    "quiet": lambda data: FetchResult(0, 9, 8, 1),
    "records": lambda data: FetchResult(0, 9, 8, 1, data(build_batch([(None, b"v" * 700, (), 7)]))),
    "aborted": lambda data: FetchResult(0, 9, 8, 1, data(build_batch([(None, b"v", (), 7)])), None, [(4, 2)]),
    "events": lambda data: FetchResult(0, 9, 8, 1, data(b"".join(build_event_batch([b"{}"], [[b"data"]], now_ms=7)))),
    "missing": lambda data: FetchResult(int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)),
    "failed": lambda data: FetchResult(int(ErrorCode.KAFKA_STORAGE_ERROR)),
    "diverging": lambda data: FetchResult(0, 9, 8, 1, None, (3, 5)),
}
ONE = st.tuples(st.sampled_from("ab"), st.sampled_from([*RESULTS]))
NONE_PLAIN = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["quiet", "records"])))


@given(st.integers(*FetchResponse.VERSIONS), NONE_PLAIN | st.lists(ONE, max_size=6), st.booleans(), st.booleans())
def test_what_is_packed_is_what_the_message_would_say(
    version: int, kinds: list[tuple[str, str]], committed: bool, near: bool
) -> None:
    arena = Arena.create(0, 1 << 20)

    def data(batch: bytes) -> IoBuf:
        held = IoBuf()
        fragment = arena.allocate(len(batch))
        fragment.view[: len(batch)] = batch
        held.append(fragment, 0, len(batch))
        return held

    def answer(merge: Any) -> bytes:
        call, _, _ = parked(closed=False)
        sent: list[bytes] = []
        ctx = cast(Any, call.ctx)
        ctx.merge, ctx.api_version, ctx.head = merge, version, lambda: bytes(8)

        def respond_packed(buffers: Any, holder: Any) -> None:
            sent.append(b"".join(buffers))
            if holder is not None:
                holder.release()

        ctx.respond_packed = respond_packed
        ctx.respond_vectored = lambda message, holder: respond_packed(
            encode_response_vectored(message, version, bytes(8)), holder
        )
        node = cast(Any, call.node)
        node.shard.arena = arena
        node.metadata = SimpleNamespace(topic=lambda _: None, topic_by_id=lambda _: None, partition=lambda *_: None)
        cast(Any, call.context).include = lambda *_, **__: rng.random() < 0.8
        call.request = FetchRequest(max_wait_ms=100, isolation_level=int(committed))
        call.results.clear()
        rng = Random(len(kinds))
        for index, (topic, kind) in enumerate(kinds):
            asked = SessionPartition(topic, topic.encode() * 16, FetchPartition(index))
            call._put(asked, RESULTS[kind](data))
            if near and index == 0:
                call.sent_to[asked] = 5
        call.answer()
        (frame,) = sent
        return frame

    assert answer(None) == answer(lambda message: message)
    assert arena.live_fragments == 0

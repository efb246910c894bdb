"""Fetch sessions: Kafka's rules for sessions, epochs and eviction, and a model that walks every partition."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.fetch_session import EVICTION_MS, FetchContext, FetchSessions, SessionPartition
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState

ID_A, ID_B = b"a" * 16, b"b" * 16
FULL, FINAL = 0, -1


def sessions(slots: int = 10, shard: int = 0, shards: int = 1, **options) -> FetchSessions:
    return FetchSessions(shard, shards, slots, random.Random(1).randrange, **options)


def asked(*indexes: int, offset: int = 0) -> list[FetchPartition]:
    return [FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=1000) for i in indexes]


def request(session: int = 0, epoch: int = FULL, topics=(), forgotten=(), follower: bool = False) -> FetchRequest:
    return FetchRequest(
        session_id=session,
        session_epoch=epoch,
        topics=[FetchTopic(topic_id=topic, partitions=parts) for topic, parts in topics],
        forgotten_topics_data=[ForgottenTopic(topic_id=topic, partitions=list(parts)) for topic, parts in forgotten],
        replica_state=ReplicaState(replica_id=1 if follower else -1),
    )


def begin(s: FetchSessions, req: FetchRequest, now_ms: int = 0, version: int = 17) -> FetchContext:
    context = s.begin(req, version, now_ms)
    assert isinstance(context, FetchContext), context
    return context


def answer_all(context: FetchContext, now_ms: int = 0, hw: int = 0, records: int = 0) -> tuple[int, list[int]]:
    sent = [p.index for p in context.take() if context.include(p, 0, hw, 0, records)]
    return context.finish(now_ms), sent


def open_session(s: FetchSessions, *indexes: int, now_ms: int = 0, follower: bool = False) -> int:
    context = begin(s, request(topics=[(ID_A, asked(*indexes))], follower=follower), now_ms)
    session_id, sent = answer_all(context, now_ms)
    assert sent == list(indexes), "a full fetch is answered for every partition"
    return session_id


def settle(s: FetchSessions, session_id: int, epoch: int) -> None:
    """The first incremental fetch looks at everything once."""
    assert answer_all(begin(s, request(session_id, epoch)))[1] == []


def partition_of(s: FetchSessions, session_id: int, index: int) -> SessionPartition:
    return s._sessions[session_id].partitions[(ID_A, index)]


def test_a_full_fetch_makes_a_session_and_an_incremental_one_answers_only_what_changed():
    s = sessions()
    sid = open_session(s, 0, 1, 2)
    assert sid > 0
    settle(s, sid, 1)
    partition_of(s, sid, 1).changed()
    assert answer_all(begin(s, request(sid, 2)), hw=5) == (sid, [1])
    assert answer_all(begin(s, request(sid, 3)), hw=5) == (sid, [])


def test_only_queued_partitions_are_looked_at():
    s = sessions()
    sid = open_session(s, *range(1000))
    settle(s, sid, 1)
    partition_of(s, sid, 500).changed()
    context = begin(s, request(sid, 2))
    assert [p.index for p in context.take()] == [500]
    assert context.take() == []
    partition_of(s, sid, 7).changed()
    assert [p.index for p in context.take()] == [7]
    assert begin(s, request(sid, 3)).partition_count == 1000


def test_a_request_that_will_not_wait_looks_at_everything_what_changed_first():
    s = sessions()
    sid = open_session(s, *range(5))
    settle(s, sid, 1)
    partition_of(s, sid, 3).changed()
    context = begin(s, request(sid, 2))
    context.look_at_all()
    assert [p.index for p in context.take()] == [3, 0, 1, 2, 4]
    assert context.take() == []


def test_final_epoch_reads_without_a_session_and_closes_the_named_one():
    s = sessions()
    sid = open_session(s, 0)
    context = begin(s, request(sid, FINAL, topics=[(ID_A, asked(3, 4))]))
    assert answer_all(context) == (0, [3, 4])
    assert len(s) == 0
    assert s.begin(request(sid, 1), 17, 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_replaces_the_session_it_names():
    s = sessions()
    first = open_session(s, 0)
    second, _ = answer_all(begin(s, request(first, FULL, topics=[(ID_A, asked(0))])))
    assert second != first
    assert len(s) == 1


@pytest.mark.parametrize("epoch", [2, 7, -5])
def test_a_wrong_epoch_is_refused_and_changes_nothing(epoch: int):
    s = sessions()
    sid = open_session(s, 0)
    assert s.begin(request(sid, epoch, forgotten=[(ID_A, [0])]), 17, 0) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    settle(s, sid, 1)


def test_epochs_wrap_to_one():
    s = sessions()
    sid = open_session(s, 0)
    s._sessions[sid].epoch = 2**31 - 1
    answer_all(begin(s, request(sid, 2**31 - 1)))
    answer_all(begin(s, request(sid, 1)))


def test_names_and_ids_do_not_mix_in_a_session():
    s = sessions()
    sid = open_session(s, 0)
    assert s.begin(request(sid, 1), 12, 0) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    settle(s, sid, 1)


def test_before_topic_ids_a_session_goes_by_name():
    s = sessions()
    full = FetchRequest(session_epoch=0, topics=[FetchTopic(topic="t", partitions=asked(0, 1))])
    sid, _ = answer_all(begin(s, full, version=12))
    forget = FetchRequest(
        session_id=sid, session_epoch=1, forgotten_topics_data=[ForgottenTopic(topic="t", partitions=[0])]
    )
    assert begin(s, forget, version=12).partition_count == 1


def test_forgotten_partitions_leave_and_the_owner_is_told():
    told: list[int] = []
    s = sessions(on_forget=lambda p: told.append(p.index))
    sid = open_session(s, 0, 1)
    gone = partition_of(s, sid, 0)
    settle(s, sid, 1)
    context = begin(s, request(sid, 2, forgotten=[(ID_A, [0, 9]), (ID_B, [1])]))
    gone.changed()
    assert [p.index for p in context.take()] == []
    assert told == [0]
    assert s.partition_count == 1
    context.finish(0)
    begin(s, request(sid, FINAL))
    assert told == [0, 1]
    assert s.partition_count == 0


def test_a_session_that_forgets_everything_ends():
    s = sessions()
    sid = open_session(s, 0)
    assert answer_all(begin(s, request(sid, 1, forgotten=[(ID_A, [0])]))) == (0, [])
    assert len(s) == 0


def test_added_partitions_are_looked_at_and_changed_ones_again():
    s = sessions()
    sid = open_session(s, 0, 1)
    settle(s, sid, 1)
    context = begin(s, request(sid, 2, topics=[(ID_A, asked(1, offset=4)), (ID_B, asked(1))]))
    assert [(p.topic_id, p.index, p.fetch_offset) for p in context.take()] == [(ID_A, 1, 4), (ID_B, 1, 0)]


def test_what_was_served_comes_last_and_what_was_cut_comes_first():
    s = sessions()
    sid = open_session(s, 0, 1, 2, 3)
    context = begin(s, request(sid, 1))
    a, b, c, d = context.take()
    assert context.include(a, 0, 10, 0, 500)
    assert context.include(b, 0, 10, 0, 0), "its high watermark is news, though there was no room for records"
    assert context.include(c, 0, 0, 0, 0) is False
    context.finish(0)  # d was not even read
    assert begin(s, request(sid, 2)).take() == [b, d, a]


def test_an_error_is_always_sent_and_so_is_the_first_good_answer_after_it():
    s = sessions()
    sid = open_session(s, 0)
    for epoch in (1, 2):
        context = begin(s, request(sid, epoch))
        (p,) = context.take()
        assert context.include(p, int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1, -1, 0)
        context.finish(0)
    assert answer_all(begin(s, request(sid, 3)))[1] == [0]
    assert answer_all(begin(s, request(sid, 4)))[1] == []


def test_a_change_between_read_and_answer_is_not_lost():
    s = sessions()
    sid = open_session(s, 0)
    settle(s, sid, 1)
    p = partition_of(s, sid, 0)
    p.changed()
    context = begin(s, request(sid, 2))
    assert context.take() == [p]
    p.changed()  # after it was read with high watermark 3
    assert context.include(p, 0, 3, 0, 0)
    context.finish(0)
    assert begin(s, request(sid, 3)).take() == [p]


def test_a_request_whose_connection_broke_loses_no_change():
    s = sessions()
    sid = open_session(s, 0)
    settle(s, sid, 1)
    p = partition_of(s, sid, 0)
    p.changed()
    begin(s, request(sid, 2)).take()  # never finished
    assert begin(s, request(sid, 3)).take() == [p]


def test_a_parked_fetch_is_woken_once_and_not_parked_over_a_change():
    s = sessions()
    sid = open_session(s, 0, 1)
    settle(s, sid, 1)
    a, b = (partition_of(s, sid, i) for i in (0, 1))
    woken: list[str] = []
    context = begin(s, request(sid, 2))
    assert context.take() == []
    assert context.park(lambda: woken.append("x"))
    a.changed()
    b.changed()
    assert woken == ["x"]
    assert not context.park(lambda: woken.append("y"))
    assert context.take() == [a, b]
    assert context.park(lambda: woken.append("y"))
    assert context.park(None)
    a.changed()
    assert woken == ["x"]


def test_a_superseded_request_knows_it():
    s = sessions()
    sid = open_session(s, 0)
    first = begin(s, request(sid, 1))
    second = begin(s, request(sid, 2))
    assert (first.superseded, second.superseded) == (True, False)


def test_a_full_cache_gives_no_session_until_one_is_stale():
    s = sessions(slots=1)
    first = open_session(s, 0)
    assert open_session(s, 0, 1, now_ms=EVICTION_MS) == 0, "not yet stale, and too young to be evicted"
    assert open_session(s, 0, now_ms=EVICTION_MS + 1) > 0
    assert s.begin(request(first, 1), 17, EVICTION_MS + 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert s.evictions == 1


def test_an_old_session_in_use_gives_way_to_a_larger_one():
    s = sessions(slots=2)
    big, small = open_session(s, 0, 1, 2), open_session(s, 0, 1)
    late = EVICTION_MS + 1
    for sid in (big, small):
        answer_all(begin(s, request(sid, 1), now_ms=EVICTION_MS // 2))
        answer_all(begin(s, request(sid, 2), now_ms=late))
    assert open_session(s, 0, 1, now_ms=late) == 0
    assert open_session(s, 0, 1, 2, now_ms=late) > 0
    assert set(s._sessions) != {big, small}
    assert big in s._sessions


def test_a_follower_takes_the_place_of_a_consumer_but_not_the_other_way():
    s = sessions(slots=1)
    consumer = open_session(s, 0, 1)
    follower = open_session(s, 0, follower=True)
    assert follower > 0
    assert consumer not in s._sessions
    assert open_session(s, *range(9), now_ms=10) == 0


def test_session_ids_stay_in_the_part_of_their_shard():
    width = 2**31 // 3
    for shard in range(3):
        s = sessions(slots=50, shard=shard, shards=3)
        for _ in range(50):
            sid = open_session(s, 0)
            assert max(1, shard * width) <= sid < (shard + 1) * width


def test_the_number_of_remembered_partitions_is_bounded():
    s = sessions(partitions_max=5)
    sid = open_session(s, 0, 1, 2)
    assert open_session(s, 0, 1, 2) == 0
    assert s.begin(request(sid, 1, topics=[(ID_B, asked(0, 1, 2))]), 17, 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert s.partition_count == 0
    assert open_session(s, 0, 1, 2) > 0


def test_a_partition_named_twice_counts_once_with_its_last_parameters():
    s = sessions()
    context = begin(s, request(topics=[(ID_A, asked(1, 2) + asked(1, offset=9))]))
    assert [(p.index, p.fetch_offset) for p in context.take()] == [(1, 9), (2, 0)]


# A model: partitions are plain logs of one-byte records, the slow session walks all of them as Kafka does.

actions = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 4), st.integers(1, 3)),
    st.tuples(st.just("trim"), st.integers(0, 4), st.integers(1, 3)),
    st.tuples(st.just("close"), st.integers(0, 4), st.booleans()),
    st.tuples(st.just("fetch"), st.integers(0, 8), st.lists(st.integers(0, 4), max_size=2)),
)


class SlowSession:
    """Kafka's rule, by walking: which partitions of ``order`` are in the answer, and their new order."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[int, int]] = {}
        self.order: list[int] = []

    def answer(self, read) -> dict[int, tuple]:
        out, served = {}, []
        for i in list(self.order):
            error, hw, start, records = read(i)
            if records or error or self.sent[i] != (hw, start):
                out[i] = (error, hw, start, records)
            self.sent[i] = (-1 if error else hw, start)
            if records:
                served.append(i)
        self.order = [i for i in self.order if i not in served] + served
        return out


@given(st.lists(actions, max_size=50))
def test_answers_what_a_session_that_walks_everything_answers(steps):
    end, start, closed, position = [0] * 5, [0] * 5, [False] * 5, [0] * 5
    s, slow = sessions(), SlowSession()
    sid = open_session(s, *range(5))
    slow.order, slow.sent = list(range(5)), dict.fromkeys(range(5), (0, 0))
    held: dict[int, SessionPartition] = {i: partition_of(s, sid, i) for i in range(5)}
    epoch = 1

    def state(i: int) -> tuple[int, int, int, int]:
        if closed[i]:
            return (3, -1, -1, 0)
        if position[i] < start[i]:
            return (1, -1, -1, 0)
        return (0, end[i], start[i], end[i] - position[i])

    for kind, a, b in [*steps, ("fetch", 8, []), ("fetch", 8, [])]:
        if kind == "append":
            end[a] += b
            held[a].changed()
        elif kind == "trim":
            start[a] = min(end[a], start[a] + b)
            held[a].changed()
        elif kind == "close":
            closed[a] = b
            held[a].changed()
        else:
            moves = {i: end[i] for i in b}  # the client read (or sought) to the end of these
            position = [moves.get(i, p) for i, p in enumerate(position)]
            topics = [(ID_A, asked(i, offset=position[i])) for i in sorted(moves)]
            context = begin(s, request(sid, epoch, topics=[(t, p) for t, p in topics]))
            epoch += 1
            got = {p.index: state(p.index) for p in context.take() if context.include(p, *state(p.index))}
            context.finish(0)
            assert got == slow.answer(state)


def named(session: int, epoch: int, *names: str) -> FetchRequest:
    topics = [FetchTopic(topic=name, partitions=asked(0)) for name in names]
    return FetchRequest(session_id=session, session_epoch=epoch, topics=topics)


def test_names_that_no_topic_can_have_are_not_kept_in_a_session():
    s = sessions()
    long = "n" * 32_767
    assert answer_all(begin(s, named(0, FULL, "topic", long), version=12)) == (0, [0, 0])
    sid = answer_all(begin(s, named(0, FULL, "topic"), version=12))[0]
    assert sid
    assert s.begin(named(sid, 1, long), 12, 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(s) == s.partition_count == 0

"""Committed offsets: fencing, durability, what is read, what expires."""

from types import SimpleNamespace

import pytest
from group_driver import DELAY_MS, Driver

from millstream.coordinator.records import encode_record
from millstream.core.group.describe import describe_group, list_groups
from millstream.core.group.topics import Topic
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.wire.stored import encode_versioned

DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS


def subscription(*topics: str) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


def test_a_commit_is_answered_and_visible_only_when_durable():
    d = Driver()
    d.hold_log = True
    token = d.commit_async({("t", 0): 7})
    assert d.waits(token)
    assert d.fetch("g", {"t": [0]}) == {("t", 0): -1}
    d.persist()
    assert d.answer(token).topics[0].partitions[0].error_code == 0
    assert d.fetch("g", {"t": [0]}) == {("t", 0): 7}
    assert d.restart().fetch() == {("t", 0): 7}


def test_a_commit_that_was_not_written_is_an_error_and_changes_nothing():
    d = Driver()
    d.commit({("t", 0): 7})
    d.hold_log = True
    token = d.commit_async({("t", 0): 8, ("t", 1): 1})
    d.persist(ErrorCode.NOT_COORDINATOR)
    assert {p.error_code for p in d.answer(token).topics[0].partitions} == {ErrorCode.NOT_COORDINATOR}
    assert d.fetch() == {("t", 0): 7}


def test_a_failed_first_commit_leaves_no_group():
    d = Driver()
    d.hold_log = True
    d.commit_async({("t", 0): 7})
    d.persist(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert d.group() is None


def test_the_last_commit_in_the_log_wins():
    d = Driver()
    d.hold_log = True
    tokens = [d.commit_async({("t", 0): offset}) for offset in (5, 9, 3)]
    d.persist(writes=2)
    assert d.fetch() == {("t", 0): 9}
    assert d.waits(tokens[2])
    d.persist()
    assert d.fetch() == {("t", 0): 3}
    assert d.restart().fetch() == {("t", 0): 3}


def test_a_stable_fetch_waits_for_commits_under_way():
    d = Driver()
    d.commit({("t", 0): 1})
    d.hold_log = True
    d.commit_async({("t", 0): 2})
    now, stable = d.fetch_async(), d.fetch_async(stable=True)
    assert d.answer(now).topics[0].partitions[0].committed_offset == 1
    assert d.waits(stable)
    assert d.fetch("other", stable=True) == {}
    d.persist()
    assert d.answer(stable).topics[0].partitions[0].committed_offset == 2


def test_members_commit_with_their_generation_only():
    d = Driver()
    (a, b), generation = d.stable(2)
    assert d.commit({("t", 0): 1}, a, generation) is ErrorCode.NONE
    assert d.commit({("t", 0): 2}, a, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert d.commit({("t", 0): 2}, a, generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert d.commit({("t", 0): 2}, "x", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert d.commit({("t", 0): 2}) is ErrorCode.UNKNOWN_MEMBER_ID, "no commits from outside while members are there"
    assert d.commit({("t", 0): 2}, a, -1) is ErrorCode.ILLEGAL_GENERATION
    for token in [d.join(a), d.join(b)]:
        assert d.error(token) is ErrorCode.NONE
    assert d.commit({("t", 0): 2}, a, generation) is ErrorCode.ILLEGAL_GENERATION
    assert d.commit({("t", 0): 2}, a, generation + 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert d.fetch() == {("t", 0): 1}


def test_commits_go_on_while_a_rebalance_gathers():
    d = Driver()
    (a, _), generation = d.stable(2)
    d.join(version=3)
    assert d.state() == "PreparingRebalance"
    assert d.commit({("t", 0): 1}, a, generation) is ErrorCode.NONE


def test_a_commit_keeps_its_member_alive():
    d = Driver()
    (a,), generation = d.stable(1)
    for _ in range(5):
        d.advance(9_000)
        assert d.commit({("t", 0): 1}, a, generation) is ErrorCode.NONE
    assert d.heartbeat(a, generation) is ErrorCode.NONE


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_member_commit_to_an_unknown_group_is_refused(version: int, error: ErrorCode):
    d = Driver()
    assert d.commit({("t", 0): 1}, "m", 3, version=version) is error
    assert d.group() is None


def test_an_empty_group_takes_commits_from_outside():
    d = Driver()
    (a,), _ = d.stable(1)
    d.leave(a)
    assert d.commit({("t", 0): 4}) is ErrorCode.NONE
    assert d.commit({("t", 0): 4}, "m", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_metadata_has_a_limit_per_partition():
    d = Driver(offset_metadata_max_bytes=4)
    assert d.commit({("t", 0): 1}, metadata="12345") is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert d.group() is None
    assert d.commit({("t", 0): 1}, metadata="1234") is ErrorCode.NONE
    assert d.commit({("t", 1): 1}, metadata=None) is ErrorCode.NONE
    partitions = d.answer(d.fetch_async()).topics[0].partitions
    assert [(p.committed_offset, p.committed_leader_epoch, p.metadata) for p in partitions] == [
        (1, 4, "1234"),
        (1, 4, ""),
    ]


def test_what_was_never_committed_reads_as_minus_one():
    d = Driver()
    d.commit({("t", 0): 1})
    assert d.fetch("g", {"t": [0, 5], "u": [1]}) == {("t", 0): 1, ("t", 5): -1, ("u", 1): -1}
    assert d.fetch("none", {"t": [0]}) == {("t", 0): -1}
    assert d.fetch("none") == {}


def test_an_offset_of_an_earlier_topic_of_that_name_is_none():
    from millstream.core.group.outputs import FetchOffsets
    from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics

    d = Driver()
    d.commit({("t", 0): 1}, topic_id=b"1" * 16)
    for token, topic_id, expected in (("x", b"1" * 16, 1), ("y", b"2" * 16, -1), ("z", bytes(16), 1)):
        topics = [OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])]
        d.step(FetchOffsets(token, OffsetFetchRequestGroup(group_id="g", topics=topics), False))
        assert d.answer(token).topics[0].partitions[0].committed_offset == expected
    d.commit({("t", 1): 2, ("gone", 0): 3}, topic_id=b"2" * 16)
    d.coordinator.topics = SimpleNamespace(by_name={"t": Topic("t", b"2" * 16, 2)}.get)
    assert d.fetch() == {("t", 1): 2, ("gone", 0): 3}, "nor among all offsets"


# What expires


def test_simple_offsets_expire_a_while_after_their_commit_and_the_group_with_the_last():
    d = Driver()
    d.commit({("t", 0): 1})
    d.advance(DAY_MS)
    d.commit({("t", 1): 1})
    d.advance(WEEK_MS - DAY_MS)
    d.expire()
    assert d.fetch() == {("t", 1): 1}
    d.advance(DAY_MS)
    d.expire()
    assert d.group() is None
    assert [value for _, value in d.log[-2:]] == [None, None]
    assert d.restart().coordinator.groups == {}


def test_an_offset_with_a_retention_time_of_its_own_keeps_to_it():
    d = Driver()
    d.commit({("t", 0): 1}, version=4, retention_ms=1_000)
    d.commit({("t", 1): 1}, version=4, retention_ms=2 * WEEK_MS)
    d.advance(1_000)
    d.expire()
    assert d.fetch() == {("t", 1): 1}
    d.advance(WEEK_MS)
    d.expire()
    assert d.restart().fetch() == {("t", 1): 1}


def test_an_offset_that_is_to_be_kept_for_the_longest_time_there_is_is_stored_and_kept():
    d = Driver()
    d.commit({("t", 0): 1}, version=4, retention_ms=(1 << 63) - 1)
    assert encode_record(*d.log[-1])[1] is not None
    d.advance(WEEK_MS)
    d.expire()
    assert d.restart().fetch() == {("t", 0): 1}


def test_an_empty_group_keeps_its_offsets_for_a_while_after_its_last_member_left():
    d = Driver()
    (a,), generation = d.stable(1)
    d.commit({("t", 0): 1}, a, generation)
    d.advance(9_000)
    d.heartbeat(a, generation)
    d.leave(a)
    d.advance(WEEK_MS - 1)
    d.expire()
    assert d.fetch() == {("t", 0): 1}
    r = d.restart()
    r.expire()
    assert r.fetch() == {("t", 0): 1}
    d.advance(1)
    d.expire()
    assert d.group() is None


def test_a_stable_consumer_group_loses_only_what_nobody_consumes():
    d = Driver()
    token = d.join(version=3, protocols={"range": subscription("read")}, session_ms=1_800_000)
    d.advance(DELAY_MS)
    a = d.answer(token).member_id
    d.sync(a, 1, {a: b""})
    d.commit({("read", 0): 1, ("dropped", 0): 2}, a, 1)
    for _ in range(WEEK_MS // 1_700_000 + 1):
        d.advance(1_700_000)
        assert d.heartbeat(a, 1) is ErrorCode.NONE
    d.expire()
    assert d.fetch() == {("read", 0): 1}
    assert d.group() is not None


def test_groups_whose_topics_are_not_known_keep_all_offsets():
    for protocol_type, metadata in (("consumer", b"\0"), ("connect", b"")):
        d = Driver()
        token = d.join(version=3, protocol_type=protocol_type, protocols={"p": metadata}, session_ms=1_800_000)
        d.advance(DELAY_MS)
        a = d.answer(token).member_id
        d.sync(a, 1, {a: b""}, protocol_type=protocol_type, protocol="p")
        d.commit({("t", 0): 1}, a, 1)
        for _ in range(WEEK_MS // 1_700_000 + 1):
            d.advance(1_700_000)
            d.heartbeat(a, 1)
        d.expire()
        assert d.fetch() == {("t", 0): 1}


def test_a_commit_on_its_way_keeps_its_group_from_expiring():
    d = Driver()
    d.commit({("t", 0): 1})
    d.advance(WEEK_MS)
    d.hold_log = True
    d.commit_async({("t", 0): 2})
    d.expire()
    d.persist()
    assert d.fetch() == {("t", 0): 2}
    assert d.restart().fetch() == {("t", 0): 2}


def test_a_commit_behind_the_tombstone_survives_it():
    d = Driver()
    d.commit({("t", 0): 1, ("t", 1): 1})
    d.advance(WEEK_MS)
    d.hold_log = True
    d.expire()
    token = d.commit_async({("t", 0): 2})
    d.persist()
    assert d.answer(token).topics[0].partitions[0].error_code == 0
    assert d.fetch() == {("t", 0): 2}
    assert d.restart().fetch() == {("t", 0): 2}


def test_a_member_that_joins_while_the_group_is_being_forgotten_keeps_it():
    d = Driver()
    d.commit({("t", 0): 1})
    d.advance(WEEK_MS)
    d.hold_log = True
    d.expire()
    token = d.join(version=3)
    d.persist()
    d.hold_log = False
    d.advance(DELAY_MS)
    assert d.answer(token).generation_id == 1


def test_tombstones_that_were_not_written_are_tried_again():
    d = Driver()
    d.commit({("t", 0): 1})
    d.advance(WEEK_MS)
    d.hold_log = True
    d.expire()
    d.persist(ErrorCode.NOT_COORDINATOR)
    assert d.fetch() == {("t", 0): 1}
    d.hold_log = False
    d.expire()
    assert d.group() is None


def test_a_deleted_topic_takes_its_offsets_along_even_those_under_way():
    d = Driver()
    d.commit({("t", 0): 1, ("u", 0): 2})
    d.commit({("t", 0): 1}, group="h")
    d.hold_log = True
    d.commit_async({("t", 9): 1})
    d.delete_topic("t")
    d.persist()
    for s in (d, d.restart()):
        assert s.fetch() == {("u", 0): 2}
        assert s.fetch("h") == {}


def test_a_deleted_topic_takes_no_offsets_of_its_successor_along():
    d = Driver()
    old, new = b"1" * 16, b"2" * 16
    d.commit({("t", 0): 1, ("t", 1): 1, ("t", 2): 1}, topic_id=old)
    d.commit({("t", 0): 2}, topic_id=new)
    d.hold_log = True
    d.commit_async({("t", 1): 3}, topic_id=new)
    d.delete_topic("t", old)
    d.persist()
    for s in (d, d.restart()):
        assert s.fetch() == {("t", 0): 2, ("t", 1): 3}


# How groups are shown


def test_groups_are_listed_by_state_and_type():
    d = Driver()
    d.stable(1)
    d.commit({("t", 0): 1}, group="simple")

    def listed(states=(), types=()) -> set:
        return {
            (g.group_id, g.protocol_type, g.group_state, g.group_type)
            for g in list_groups(d.coordinator.groups.values(), states, types)
        }

    stable, simple = ("g", "consumer", "Stable", "classic"), ("simple", "", "Empty", "classic")
    assert listed() == {stable, simple}
    assert listed(["stable"]) == {stable}
    assert listed(["EMPTY", "Dead"]) == {simple}
    assert listed(types=["Classic"]) == {stable, simple}
    assert listed(types=["consumer"]) == set()


def test_a_stable_group_is_described_with_assignments():
    d = Driver()
    (a,), _ = d.stable(1)
    described = describe_group("g", d.group(), 6)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    (member,) = described.members
    assert (member.member_id, member.client_id, member.client_host) == (a, "c", "/10.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"r", a.encode())
    d.join(a)
    assert describe_group("g", d.group(), 6).protocol_data == ""


def test_an_unknown_group_is_dead_and_since_version_6_an_error():
    assert (describe_group("x", None, 5).group_state, describe_group("x", None, 5).error_code) == ("Dead", 0)
    described = describe_group("x", None, 6)
    assert (described.group_state, described.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert described.error_message == "Group x not found."


def test_a_group_of_whose_expired_offsets_some_could_not_be_forgotten_is_tried_again():
    d = Driver(offsets_retention_ms=1_000)
    d.commit({("t", index): index for index in range(1_500)})
    d.advance(1_000)
    d.hold_log = True
    d.expire()
    d.persist(ErrorCode.COORDINATOR_NOT_AVAILABLE, 1)
    d.persist()
    assert len(d.fetch()) == 1_000
    d.expire()
    d.persist()
    assert d.state() == "Dead"
    assert d.restart().coordinator.groups == {}

"""Members of both protocols in one group, and groups that change their protocol (KIP-848), as seen on the wire.

What is expected here is what Apache Kafka 4.3 does: ``pytest tests/conformance/test_consumer_group_protocols.py --peer
kafka`` runs the same against it.
"""

import pytest
from group_next import OK, fetch_as, settle
from group_wire import Member, asked_to_rejoin, commit, describe, subscription

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_protocol import ConsumerProtocolAssignment
from millstream.wire.stored import decode_versioned

pytestmark = pytest.mark.process


def classic(member, instance=None):
    return Member(member.bootstrap, member.group, instance, protocols={"range": subscription("t")})


def told(member):
    """What a classic member of a consumer group is told to own."""
    assert member.sync() is OK
    assignment = decode_versioned(ConsumerProtocolAssignment, member.answer.assignment)
    return sorted(partition for topic in assignment.assigned_partitions for partition in topic.partitions)


def test_a_classic_member_works_in_a_consumer_group(someone):
    one = someone("A")
    one.join()
    old = classic(one)
    assert old.join() is ErrorCode.MEMBER_ID_REQUIRED
    assert old.join() is OK
    assert (old.answer.leader, old.answer.members, old.answer.protocol_name) == ("", [], "range")
    assert old.generation == 3
    assert told(old) == []
    assert old.beat() is OK, "what it is to have is another's"
    assert one.beat() is OK
    assert one.beat() is OK
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS, "now it is free"
    assert old.join() is OK
    assert sorted(told(old) + one.partitions) == [0, 1, 2, 3]
    types = {member.member_id: member.member_type for member in one.described().members}
    assert types == {"A": 1, old.id: 0}
    assert commit(old.line, old.group, {("t", 0): 1}, generation=2, member_id=old.id) is ErrorCode.ILLEGAL_GENERATION
    assert old.beat(generation_id=2) is ErrorCode.ILLEGAL_GENERATION
    assert old.beat(member_id="A") is ErrorCode.UNKNOWN_MEMBER_ID, "that one speaks another protocol"
    assert old.leave() is OK
    settle(one)
    assert one.partitions == [0, 1, 2, 3]
    old.close()


def test_a_classic_group_is_upgraded_and_downgraded_while_its_member_stays(someone):
    one = someone("A")
    old = classic(one)
    old.come_in()
    assert old.joined() is OK
    everything = subscription_assignment()
    assert old.sync({old.id: everything}) is OK
    assert one.say(member_epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert one.answer.error_message == f"Group {one.group} is not a consumer group."
    assert one.join() is OK
    assert one.epoch == old.generation + 1 == 2
    assert one.partitions == []
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert old.join() is OK
    kept = told(old)
    assert len(kept) == 2
    settle_with(one, old)
    assert sorted(one.partitions + told(old)) == [0, 1, 2, 3]
    assert one.leave() is OK
    asked_to_rejoin(old)
    assert old.join() is OK
    assert old.leads, "it is a classic group again"
    assert describe(old.line, old.group).group_state == "CompletingRebalance"
    old.close()


def test_a_static_member_takes_its_place_in_the_other_protocol(someone):
    one = someone("A", instance="i")
    one.join()
    old = classic(one, instance="i")
    assert old.join() is OK, "the only member of the consumer protocol is replaced: a classic group"
    assert (old.generation, old.answer.leader, old.answer.protocol_name) == (2, "", "range")
    assert told(old) == [0, 1, 2, 3]
    assert old.beat() is OK, "and no rebalance"
    assert describe(old.line, old.group).group_state == "Stable"
    assert one.beat() is ErrorCode.GROUP_ID_NOT_FOUND
    assert one.join() is OK, "and back"
    assert one.partitions == [0, 1, 2, 3]
    assert old.beat() is ErrorCode.FENCED_INSTANCE_ID
    old.close()


def test_classic_members_are_called_when_the_new_assignment_is_there(someone):
    one = someone("A")
    one.join()
    old = classic(one)
    old.join()
    assert old.join() is OK
    assert told(old) == []
    two = someone("B", topics=("u",))
    assert two.join() is OK
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert old.join() is OK
    assert old.generation == two.epoch
    old.close()


def subscription_assignment():
    from millstream.wire.messages.consumer_protocol import TopicPartition
    from millstream.wire.stored import encode_versioned

    everything = [TopicPartition(topic="t", partitions=[0, 1, 2, 3])]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=everything), 0)


def settle_with(one, old):
    """Until neither is told to do anything more."""
    for _ in range(20):
        assert one.beat() is OK
        if old.beat() is OK:
            if len(one.partitions) == 2:
                return
        else:
            assert old.join() is OK
            told(old)
    raise AssertionError("it does not settle")


def test_an_empty_group_takes_the_kind_of_whoever_joins(someone):
    one = someone("A")
    one.join()
    commit(one.line, one.group, {("t", 0): 3}, generation=2, member_id="A")
    one.leave()
    old = classic(one)
    old.come_in()
    assert old.joined() is OK
    assert (old.leads, old.generation) == (True, 1)
    assert old.leave() is OK
    assert one.join() is OK
    assert one.epoch == 2
    assert fetch_as(one.line, one.group, None, -1) == 3, "offsets stay"
    old.close()

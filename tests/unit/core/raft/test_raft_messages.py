"""Messages are values: frozen, comparable, and told apart by their tag in any codec that knows structs."""

import msgspec
import pytest

from millstream.core.raft import messages as m
from millstream.core.raft.ready import LogPersisted, Ready, Recovered
from millstream.model.replication import NO_REPLICA, InquiryNumber, RaftPosition, ReplicaId, Term, node_of, replica_id

P, T, R = RaftPosition, Term, ReplicaId

EVERY_CONTROL = (
    m.TermStart(),
    m.Configuration(voters=(R(1), R(2)), outgoing=(R(1),), learners=(R(3),)),
    m.LogStart(offset=12),
    m.Opaque(kind=7, payload=b"x"),
)
EVERY_MESSAGE = (
    m.VoteRequest(T(3), m.LogPoint(P(9), T(2)), pre=True, transfer=False),
    m.VoteReply(T(3), granted=True, pre=False),
    m.Append(
        T(3),
        m.LogPoint(P(9), T(2)),
        (m.TermRun(P(12), T(2)), m.TermRun(P(16), T(3))),
        tuple(m.ControlEntry(P(12 + i), T(3), control) for i, control in enumerate(EVERY_CONTROL)),
        committed=P(9),
        visible=P(10),
        round=4,
    ),
    m.AppendReply(T(3), received=P(16), durable=P(12), round=4),
    m.AppendRejected(T(3), P(9), m.LogPoint(P(7), T(1)), round=4),
    m.Heartbeat(T(3), committed=P(9), visible=P(9), round=5),
    m.HeartbeatReply(T(3), received=P(16), durable=P(16), round=5),
    m.TimeoutNow(T(3)),
    m.InstallOffer(T(3), m.LogPoint(P(9), T(2)), m.Configuration(voters=(R(1),)), round=6),
    m.NewerTerm(T(4)),
    m.Inquiry(T(4), InquiryNumber(5)),
    m.InquiryReply(T(4), InquiryNumber(5), P(9), leads=True),
)


def test_the_list_above_has_every_message_and_every_control():
    assert {type(message) for message in EVERY_MESSAGE} == set(m.Message.__args__)
    assert {type(control) for control in EVERY_CONTROL} == set(m.Control.__args__)


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=lambda message: type(message).__name__)
def test_a_message_survives_a_codec_that_knows_its_union(message):
    raw = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(raw, type=m.Message) == message


@pytest.mark.parametrize("value", [*EVERY_MESSAGE, Ready(P(0), P(0)), LogPersisted(P(1), T(1))], ids=repr)
def test_values_are_frozen(value):
    with pytest.raises(AttributeError):
        setattr(value, type(value).__struct_fields__[0], None)


def test_a_new_group_has_an_empty_log_and_no_vote():
    recovered = Recovered(m.Configuration(voters=(R(1),)))
    assert recovered.state.voted_for == NO_REPLICA
    assert recovered.base == m.LogPoint(P(0), T(0))


def test_a_replaced_disk_is_another_replica_of_the_same_node():
    assert replica_id(5) == 5
    assert replica_id(5, 1) != replica_id(5)
    assert node_of(replica_id(5, 3)) == node_of(replica_id(5)) == 5

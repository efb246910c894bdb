"""Quotas in the controller: what is refused, what is changed, and that a snapshot keeps it."""

import pytest
from controller_bench import Bench

from millstream.core.controller.commands import SECURING, QuotasChanged, decode_command, encode_command
from millstream.core.controller.requests import AlterQuotas, ChangeQuotas, decode_request, encode_request
from millstream.core.controller.state import decode_state, encode_state, state_hash

ALICE = (("user", "alice"),)


def change(bench, *entities, validate_only=False):
    request = AlterQuotas(tuple(ChangeQuotas(parts, tuple(changes)) for parts, changes in entities), validate_only)
    decision = bench.decide(decode_request(encode_request(request)))
    for command in decision.commands:
        bench.state.apply(decode_command(encode_command(command)))
    return [result.message or result.error.name for result in decision.results], decision.commands


def test_quotas_are_set_changed_and_removed():
    bench = Bench()
    limits = bench.state.security.limits
    pair = (("user", None), ("client-id", "c"))
    results, commands = change(bench, (ALICE, [("producer_byte_rate", 1000.0)]), (pair, [("request_percentage", 0.5)]))
    assert results == ["NONE", "NONE"]
    assert len(commands) == 2
    assert limits.entities[ALICE] == {"producer_byte_rate": 1000.0}
    assert limits.entities[("client-id", "c"), ("user", None)] == {"request_percentage": 0.5}
    assert change(bench, (ALICE, [("producer_byte_rate", 1000.0)])) == (["NONE"], ())
    assert change(bench, (ALICE, [("consumer_byte_rate", None)])) == (["NONE"], ())
    _, commands = change(bench, (ALICE, [("consumer_byte_rate", 5.0), ("producer_byte_rate", None)]))
    assert commands == (QuotasChanged(entity=ALICE, changes={"consumer_byte_rate": 5.0, "producer_byte_rate": None}),)
    change(bench, (ALICE, [("consumer_byte_rate", None)]))
    assert ALICE not in limits.entities
    assert change(bench, (ALICE, [("consumer_byte_rate", 1.0)]), validate_only=True) == (["NONE"], ())
    assert ALICE not in limits.entities


@pytest.mark.parametrize(
    ("parts", "changes", "why"),
    [
        ((), [], "Invalid empty client quota entity"),
        ((("user", ""),), [], "Empty user not supported"),
        ((("group", "g"),), [], "Unhandled client quota entity type: group"),
        ((("user", "a"), ("user", "b")), [], "duplicate entity entry user"),
        ((("user", "a"), ("ip", "::1")), [], "should not be combined"),
        ((("ip", "localhost"),), [], "localhost is not a valid IP"),
        (ALICE, [("connection_creation_rate", 1.0)], "Invalid configuration key connection_creation_rate"),
        ((("ip", "::1"),), [("producer_byte_rate", 1.0)], "Invalid configuration key producer_byte_rate"),
        (ALICE, [("producer_byte_rate", 0.0)], "must be greater than 0"),
        (ALICE, [("producer_byte_rate", float("nan"))], "must be greater than 0"),
        (ALICE, [("producer_byte_rate", 1.5)], "cannot be a fractional value"),
        (ALICE, [("request_percentage", float("inf"))], "too large"),
        ((("ip", "::1"),), [("connection_creation_rate", 2.0**31)], "too large for an INT"),
        (ALICE, [("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)], "Duplicate quota key producer_byte_rate"),
    ],
)
def test_what_cannot_be_in_force_is_refused_and_the_rest_of_the_request_is_not(parts, changes, why):
    bench = Bench()
    results, commands = change(bench, (parts, changes), ((("user", "bob"),), [("producer_byte_rate", 9.0)]))
    assert why in results[0]
    assert results[1] == "NONE"
    assert [command.entity for command in commands] == [(("user", "bob"),)]


def test_an_entity_counts_once_in_a_request_in_whatever_order_its_parts_stand():
    bench = Bench()
    pair = (("user", "a"), ("client-id", "c"))
    results, commands = change(
        bench, (pair, [("producer_byte_rate", 1.0)]), (pair[::-1], [("producer_byte_rate", 2.0)])
    )
    assert results == ["NONE", "Ignoring duplicate entity client-id=c, user=a"]
    assert len(commands) == 1


def test_a_snapshot_keeps_quotas():
    bench = Bench()
    before = state_hash(bench.state)
    entities = [(ALICE, [("producer_byte_rate", 3.0)]), ((("ip", None),), [("connection_creation_rate", 7.0)])]
    change(bench, *entities)
    stored = encode_state(bench.state)
    restored = decode_state(stored)
    assert restored == bench.state == bench.state.copy()
    assert restored.security.limits.entities == bench.state.security.limits.entities
    assert restored.security.limits.addresses() == {"": 7.0}
    assert encode_state(restored) == stored
    assert stored != encode_state(Bench().state)
    copied = bench.state.copy()
    copied.security.limits.change(ALICE, {"producer_byte_rate": None})
    assert ALICE in bench.state.security.limits.entities
    change(bench, *((parts, [(key, None) for key, _ in changes]) for parts, changes in entities))
    bench.state.revision -= 4
    assert state_hash(bench.state) == before


def test_a_cluster_has_quotas_when_all_its_brokers_know_them():
    bench = Bench(brokers=(1, 2))
    results, commands = change(bench, (ALICE, [("producer_byte_rate", 1.0)]))
    assert "need feature level" in results[0] and not commands
    bench.state.feature_level = SECURING
    assert change(bench, (ALICE, [("producer_byte_rate", 1.0)]))[0] == ["NONE"]

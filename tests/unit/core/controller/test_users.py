"""Users in the controller: what is decided, kept through a snapshot, and shown to nobody."""

import pytest
from controller_bench import Bench

from millstream.core.controller.commands import (
    SECURING,
    SecretSet,
    UserRemoved,
    UserSet,
    decode_command,
    encode_command,
)
from millstream.core.controller.requests import AlterUsers, RemoveUser, SetUser
from millstream.core.controller.state import decode_state, encode_state
from millstream.core.controller.users import DECOYS
from millstream.errors import Corruption
from millstream.wire.sasl import SCRAM_SHA_256, Verifier, verifier_of

VERIFIER = verifier_of(SCRAM_SHA_256, b"s" * 32, b"salt", 4096)


def set_user(user="alice", mechanism=1, verifier=VERIFIER):
    return SetUser(user, mechanism, verifier)


def change(bench, *sets, removals=()):
    decision = bench.decide(AlterUsers(tuple(removals), sets))
    for command in decision.commands:
        bench.state.apply(decode_command(encode_command(command)))
    return [(result.name, result.error.name) for result in decision.results], [type(c) for c in decision.commands]


def test_a_user_comes_with_the_secret_of_decoys_and_goes():
    bench = Bench()
    assert change(bench, set_user()) == ([("alice", "NONE")], [SecretSet, UserSet])
    secret = bench.state.security.secrets[DECOYS]
    assert len(secret) == 32
    assert change(bench, set_user(), set_user("bob")) == ([("alice", "NONE"), ("bob", "NONE")], [UserSet, UserSet])
    assert bench.state.security.iterations == {1: {4096: 2}}
    assert change(bench, removals=[RemoveUser("bob", 1)]) == ([("bob", "NONE")], [UserRemoved])
    assert list(bench.state.security.users) == [("alice", 1)]
    assert bench.state.security.secrets[DECOYS] == secret


@pytest.mark.parametrize(
    ("sets", "removals", "error"),
    [
        ([set_user(), set_user()], [], "DUPLICATE_RESOURCE"),
        ([set_user(mechanism=2), set_user()], [], "DUPLICATE_RESOURCE"),
        ([set_user()], [RemoveUser("alice", 1)], "DUPLICATE_RESOURCE"),
        ([set_user("")], [], "UNACCEPTABLE_CREDENTIAL"),
        ([set_user("a\nb")], [], "UNACCEPTABLE_CREDENTIAL"),
        ([set_user("u" * 1025)], [], "UNACCEPTABLE_CREDENTIAL"),
        ([set_user(mechanism=3)], [], "UNSUPPORTED_SASL_MECHANISM"),
        ([set_user(verifier=Verifier(b"", b"k" * 32, b"k" * 32, 4096))], [], "UNACCEPTABLE_CREDENTIAL"),
        ([set_user(verifier=Verifier(b"salt", b"k", b"k", 4096))], [], "UNACCEPTABLE_CREDENTIAL"),
        ([set_user(verifier=Verifier(b"salt", b"k" * 32, b"k" * 32, 4095))], [], "UNACCEPTABLE_CREDENTIAL"),
        ([set_user(verifier=Verifier(b"salt", b"k" * 32, b"k" * 32, 16385))], [], "UNACCEPTABLE_CREDENTIAL"),
        ([], [RemoveUser("alice", 1)], "RESOURCE_NOT_FOUND"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_the_others_are_made(sets, removals, error):
    bench = Bench()
    results, commands = change(bench, *sets, set_user("bob"), removals=removals)
    assert results[0][1] == error and results[-1] == ("bob", "NONE")
    assert commands == [SecretSet, UserSet]


def test_a_cluster_with_older_brokers_has_no_users_yet():
    bench = Bench(brokers=(1, 2))
    assert change(bench, set_user()) == ([("alice", "UNSUPPORTED_VERSION")], [])
    bench.state.feature_level = SECURING
    assert change(bench, set_user())[0] == [("alice", "NONE")]


def test_users_are_in_a_snapshot_that_older_releases_refuse():
    bench = Bench()
    before = encode_state(bench.state)
    assert before[:10].endswith(b"\x01"), "a state without users is written as before"
    change(bench, set_user(), set_user("bob", 1))
    stored = encode_state(bench.state)
    assert stored[:10].endswith(b"\x04")
    again = decode_state(stored)
    assert again == bench.state == bench.state.copy()
    assert again.security.users == bench.state.security.users
    assert again.security.iterations == {1: {4096: 2}}


def test_a_copy_is_independent_and_a_contradiction_is_corruption():
    bench = Bench()
    change(bench, set_user())
    copy = bench.state.copy()
    change(bench, removals=[RemoveUser("alice", 1)])
    assert copy.security.users and not bench.state.security.users
    with pytest.raises(Corruption):
        bench.state.apply(UserRemoved(user="alice", mechanism=1))


def test_no_command_shows_a_secret():
    for command in (UserSet(user="alice", mechanism=1, verifier=VERIFIER), SecretSet(name="n", value=b"bytes")):
        shown = repr(command)
        assert "bytes" not in shown and "salt" not in shown and "stored" not in shown

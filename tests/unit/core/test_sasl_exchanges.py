"""SCRAM and PLAIN as a server sees them: who gets in, and that an unknown user looks like a known one."""

import hashlib
import hmac

import pytest

from millstream.core.sasl.plain import plain_login
from millstream.core.sasl.scram import LoginRefused, ScramExchange, decoy
from millstream.wire.sasl import (
    SCRAM_SHA_256,
    client_final,
    client_first,
    plain_token,
    read_server_first,
    salted_password,
    verifier_of,
)

SALTED = salted_password(SCRAM_SHA_256, "secret", b"salt", 4096)
USERS = {"alice": verifier_of(SCRAM_SHA_256, SALTED, b"salt", 4096)}


def find(user):
    return USERS.get(user, decoy(SCRAM_SHA_256, b"cluster", user, (4096, 8192)))


def log_in(user, password="secret", *, change=lambda final: final, acts_as="", server=None):
    exchange = ScramExchange(SCRAM_SHA_256, find, "server")
    first = client_first(user, "client")
    header = f"n,{acts_as},".encode()
    challenge = read_server_first(exchange.step(header + first.bare), "client")
    salted = salted_password(SCRAM_SHA_256, password, challenge.salt, challenge.iterations)
    exchange.step(change(client_final(SCRAM_SHA_256, salted, first._replace(gs2_header=header), server or challenge)))
    assert exchange.done
    return exchange.user


def test_who_knows_the_password_gets_in():
    assert log_in("alice") == "alice"
    assert log_in("alice", acts_as="a=alice") == "alice"


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: log_in("alice", "wrong"),
        lambda: log_in("eve"),
        lambda: log_in("alice", acts_as="a=root"),
        lambda: log_in("alice", change=lambda final: final.replace(b"r=clientserver", b"r=clientother!")),
        lambda: log_in("alice", change=lambda final: final.replace(b"c=biws", b"c=eSws")),
        lambda: log_in("alice", change=lambda final: final[:-8]),
        lambda: log_in("alice", change=lambda final: b""),
        lambda: log_in("alice", change=lambda final: b"\xff" * 9),
        lambda: ScramExchange(SCRAM_SHA_256, find, "server").step(b"c=biws,r=clientserver,p=AA=="),
    ],
)
def test_nobody_else_gets_in(attempt):
    with pytest.raises(LoginRefused) as refused:
        attempt()
    assert "secret" not in refused.value.message and "wrong,r" not in refused.value.message


def test_a_decoy_is_the_same_at_every_login_and_differs_from_user_to_user():
    made = [decoy(SCRAM_SHA_256, b"cluster", user, (4096, 8192)) for user in ("eve", "eve", "mallory")]
    assert made[0] == made[1] != made[2]
    assert decoy(SCRAM_SHA_256, b"another", "eve", ()) != made[0]
    assert {decoy(SCRAM_SHA_256, b"cluster", f"u{n}", (4096, 8192)).iterations for n in range(50)} == {4096, 8192}


def test_the_same_hashes_are_computed_for_a_known_and_an_unknown_user(monkeypatch):
    def counted(user):
        calls = []
        digest, slow = hmac.digest, hashlib.pbkdf2_hmac
        monkeypatch.setattr(hmac, "digest", lambda *a: (calls.append("hmac"), digest(*a))[1])
        exchange = ScramExchange(SCRAM_SHA_256, find, "server")
        challenge = read_server_first(exchange.step(b"n,,n=" + user.encode() + b",r=client"), "client")
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *a: pytest.fail("a server hashes no password here"))
        before = list(calls)
        with pytest.raises(LoginRefused):
            exchange.step(f"c=biws,r={challenge.nonce},p={'A' * 43}=".encode())
        monkeypatch.setattr(hmac, "digest", digest)
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", slow)
        return len(before), len(calls)

    assert counted("alice") == counted("eve-1")


def test_plain_names_who_logs_in_and_lets_nobody_act_as_another():
    assert plain_login(plain_token("alice", "x")).user == "alice"
    for bad in (b"root\0alice\0x", b"\0alice", b"\0\0"):
        with pytest.raises(LoginRefused):
            plain_login(bad)

"""Tokens of SASL: the published vectors, and that nothing malformed passes or shows a secret."""

import base64

import pytest

from millstream.wire.sasl import (
    ITERATIONS_MAX,
    SCRAM_BY_NAME,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    MalformedToken,
    PlainToken,
    auth_message,
    client_final,
    client_first,
    opens,
    plain_token,
    proof_is_right,
    read_client_final,
    read_client_first,
    read_plain,
    read_server_first,
    salted_password,
    server_final,
    server_first,
    server_is_right,
    verifier_of,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
NONCE = CLIENT_NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def test_the_exchange_of_rfc_7677():
    first = client_first("user", CLIENT_NONCE)
    assert first.gs2_header + first.bare == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server_first(NONCE, SALT, 4096)
    assert challenge.data == f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    salted = salted_password(SCRAM_SHA_256, "pencil", SALT, 4096)
    final = client_final(SCRAM_SHA_256, salted, first, challenge)
    assert final == f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    read = read_client_final(final)
    message = auth_message(first, challenge, read.without_proof)
    verifier = verifier_of(SCRAM_SHA_256, salted, SALT, 4096)
    assert proof_is_right(SCRAM_SHA_256, verifier, message, read.proof)
    answer = server_final(SCRAM_SHA_256, verifier, message)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server_is_right(SCRAM_SHA_256, salted, message, answer)
    assert not server_is_right(SCRAM_SHA_256, salted, message, answer[:-2] + b"A=")


@pytest.mark.parametrize("mechanism", SCRAM_BY_NAME.values(), ids=str)
def test_both_ends_agree_and_a_wrong_password_proves_nothing(mechanism):
    first = read_client_first(b"n,a=m=3Dr=2Cx,n=m=3Dr=2Cx,r=abc,ext=1")
    assert (first.user, first.authorization_id) == ("m=r,x", "m=r,x")
    challenge = read_server_first(server_first("abcdef", b"salt", 4096).data, "abc")
    verifier = verifier_of(mechanism, salted_password(mechanism, "right", b"salt", 4096), b"salt", 4096)
    for password, expected in (("right", True), ("wrong", False)):
        salted = salted_password(mechanism, password, b"salt", 4096)
        final = read_client_final(client_final(mechanism, salted, first, challenge))
        message = auth_message(first, challenge, final.without_proof)
        assert proof_is_right(mechanism, verifier, message, final.proof) is expected
        assert opens(mechanism, password, verifier) is expected
    assert not opens(mechanism, "right\0", verifier), "HMAC takes it for the same"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=u",
        b"n,,r=x,n=u",
        b"n,,n=u,r=",
        b"p=tls-unique,,n=u,r=x",
        b"n,b=c,n=u,r=x",
        b"n,,n=u=2,r=x",
        b"n,,n=u\0,r=x",
        b"n,,n=\xff,r=x",
        b"n,,n=u,r=\xc3\xa4",
        b"n,,n=" + b"u" * 2000 + b",r=x",
        b"n,,n=u,r=" + b"x" * 70_000,
    ],
)
def test_a_malformed_first_message_is_refused_and_not_repeated(data):
    with pytest.raises(MalformedToken) as refused:
        read_client_first(data)
    assert "u" * 100 not in str(refused.value)


@pytest.mark.parametrize(
    "data", [b"", b"c=biws,r=x", b"r=x,c=biws,p=AA==", b"c=biws,r=x,p=A", b"c=biws,r=x,r=y,p=AA=="]
)
def test_a_malformed_final_message_is_refused(data):
    with pytest.raises(MalformedToken):
        read_client_final(data)


@pytest.mark.parametrize(
    "data",
    [
        b"r=abc,s=AA==,i=4096",
        b"r=xyz,s=AA==,i=4096",
        b"r=abcd,s=,i=4096",
        b"r=abcd,s=AA==,i=4095",
        b"r=abcd,s=AA==,i=1000000000",
        b"r=abcd,s=AA==,i=" + b"9" * 5000,
        b"s=AA==,r=abcd,i=4096",
        b"e=other-error",
    ],
)
def test_a_client_of_ours_computes_no_more_than_is_bearable(data):
    with pytest.raises(MalformedToken):
        read_server_first(data, "abc")
    assert read_server_first(f"r=abcd,s=AA==,i={ITERATIONS_MAX}".encode(), "abc").iterations == ITERATIONS_MAX


def test_plain_is_read_as_it_is_written():
    assert read_plain(plain_token("alice", "s,e=c")) == PlainToken("", "alice", "s,e=c")
    assert read_plain(b"alice\0alice\0x").authorization_id == "alice"
    for bad in (b"", b"\0\0x", b"\0alice\0", b"\0alice\0\0x", b"alice\0x", b"\0\xff\0x"):
        with pytest.raises(MalformedToken):
            read_plain(bad)


def test_nothing_shows_a_secret():
    verifier = verifier_of(SCRAM_SHA_512, b"salted-password", b"salt", 4096)
    for shown in (repr(verifier), repr(PlainToken("", "alice", "secret-word")), f"{verifier}"):
        assert "salt" not in shown and "secret" not in shown and str(verifier.stored_key) not in shown

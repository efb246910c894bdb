"""JSON web tokens: what is taken, forty broken ones that are not, key sets, and where keys come from."""

import hmac
import json
import os
import select
import socket
import ssl
import threading

import pytest
from joserfc.jwk import OctKey

import certificates
from issuer import AUDIENCE, ISSUER, Issuer, claims, ec_key, encoded, key_set, rsa_key, sign, token
from millstream.errors import Rejected, Unavailable
from millstream.secure.tokens import fetch as fetching
from millstream.secure.tokens.fetch import fetch
from millstream.secure.tokens.issuer import TokenEndpoint, token_from
from millstream.secure.tokens.keys import BadKeys, read_keys
from millstream.secure.tokens.rules import TokenRules
from millstream.secure.tokens.source import UNKNOWN_S, KeySource
from millstream.secure.tokens.verify import UnknownKey, verify
from waits import PATIENCE_S

NOW = 1_800_000_000.0
RULES = TokenRules("file:///keys", issuer=ISSUER, audiences=(AUDIENCE, "other"))
KEYS = (ec_key(), rsa_key(), ec_key(1, "P-384"))
SET = read_keys(key_set(*KEYS))


def judged(text, keys=SET, rules=RULES):
    return verify(text, keys, rules, NOW)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(KEYS[0], "ES256"), (KEYS[1], "RS256"), (KEYS[1], "PS256"), (KEYS[1], "RS512"), (KEYS[2], "ES384")],
)
def test_a_good_token_says_who_and_for_how_long(key, algorithm):
    verdict = judged(sign(claims(now_s=NOW, lifetime_s=90), key, algorithm))
    assert (verdict.user, verdict.lifetime_ms, verdict.reason) == ("svc-orders", 90_000, "")


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": ["a", "other"]},
        {"scope": ["read", "write"]},
        {"scope": []},
        {"scope": None},
        {"nbf": NOW + 30},
        {"exp": NOW + 0.5},
        {"iat": NOW + 20},
        {"more": {"deep": [1, 2]}},
    ],
)
def test_what_may_differ(changed):
    assert judged(sign(claims(now_s=NOW, **changed))).user == "svc-orders"


def signed_with_the_public_key():
    """The attacker's trick: HMAC, whose secret is the public key."""
    signed = f"{encoded({'alg': 'HS256', 'kid': ec_key().kid})}.{encoded(claims(now_s=NOW))}"
    return f"{signed}.{encoded(hmac.digest(ec_key().as_pem(private=False), signed.encode(), 'sha256'))}"


def without_signature():
    return sign(claims(now_s=NOW)).rpartition(".")[0] + "."


def other_claims():
    head, _, signature = sign(claims(now_s=NOW)).split(".")
    return f"{head}.{encoded(claims('root', now_s=NOW))}.{signature}"


def flipped(part):
    parts = sign(claims(now_s=NOW)).split(".")
    parts[part] = ("B" if parts[part][0] == "A" else "A") + parts[part][1:]
    return ".".join(parts)


STRANGER = ec_key(7)
DEEP = b'{"alg":"ES256","a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"

BROKEN = {
    "nothing": lambda: "",
    "one part": lambda: "abc",
    "two parts": lambda: "a.b",
    "four parts": lambda: "a.b.c.d",
    "five parts of an encrypted one": lambda: "a.b.c.d.e",
    "dots": lambda: "..",
    "no signature": without_signature,
    "alg none": lambda: f"{encoded({'alg': 'none'})}.{encoded(claims(now_s=NOW))}.",
    "alg none with a signature": lambda: sign(claims(now_s=NOW), alg="none"),
    "alg None": lambda: sign(claims(now_s=NOW), alg="None"),
    "HMAC with the public key": signed_with_the_public_key,
    "no alg": lambda: sign(claims(now_s=NOW), alg=None),
    "alg is a number": lambda: sign(claims(now_s=NOW), alg=1),
    "alg of another key": lambda: sign(claims(now_s=NOW), KEYS[1], kid=KEYS[0].kid),
    "signed by a stranger": lambda: sign(claims(now_s=NOW), ec_key(7), kid=KEYS[0].kid),
    "a key of its own": lambda: sign(claims(now_s=NOW), STRANGER, kid=KEYS[0].kid, jwk=STRANGER.as_dict(private=False)),
    "where its keys are": lambda: sign(claims(now_s=NOW), STRANGER, kid=KEYS[0].kid, jku="http://127.0.0.1:1/keys"),
    "where its certificate is": lambda: sign(claims(now_s=NOW), STRANGER, kid=KEYS[0].kid, x5u="file:///etc/passwd"),
    "kid is a list": lambda: sign(claims(now_s=NOW), kid=["a"]),
    "crit": lambda: sign(claims(now_s=NOW), crit=["exp"]),
    "b64": lambda: sign(claims(now_s=NOW), b64=False),
    "claims of another": other_claims,
    "a bit of the header": lambda: flipped(0),
    "a bit of the claims": lambda: flipped(1),
    "a bit of the signature": lambda: flipped(2),
    "padding": lambda: sign(claims(now_s=NOW)) + "==",
    "the other base64": lambda: sign(claims(now_s=NOW)) + "+/",
    "claims are no JSON": lambda: sign(b"{"),
    "claims are a list": lambda: sign([]),
    "claims nest deeply": lambda: sign(b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    "a header that nests deeply": lambda: f"{encoded(DEEP)}.{encoded(claims(now_s=NOW))}.{encoded(b'x')}",
    "a header that is huge": lambda: sign(claims(now_s=NOW), x5c=["x" * 20_000]),
    "a signature that is huge": lambda: sign(claims(now_s=NOW)) + "A" * 4096,
    "no exp": lambda: sign(claims(now_s=NOW, exp=None)),
    "exp is text": lambda: sign(claims(now_s=NOW, exp="tomorrow")),
    "exp is true": lambda: sign(claims(now_s=NOW, exp=True)),
    "exp has passed": lambda: sign(claims(now_s=NOW, exp=NOW)),
    "exp within the skew": lambda: sign(claims(now_s=NOW, exp=NOW - 1)),
    "exp without bound": lambda: sign(claims(now_s=NOW, exp=1e300)),
    "exp before iat": lambda: sign(claims(now_s=NOW, exp=NOW + 5, iat=NOW + 9)),
    "no iat": lambda: sign(claims(now_s=NOW, iat=None)),
    "nbf beyond the skew": lambda: sign(claims(now_s=NOW, nbf=NOW + 31)),
    "no issuer": lambda: sign(claims(now_s=NOW, iss=None)),
    "another issuer": lambda: sign(claims(now_s=NOW, iss=ISSUER + "x")),
    "no audience": lambda: sign(claims(now_s=NOW, aud=None)),
    "another audience": lambda: sign(claims(now_s=NOW, aud=["kafka2", "x"])),
    "audience has numbers": lambda: sign(claims(now_s=NOW, aud=["kafka", 1])),
    "no subject": lambda: sign(claims(now_s=NOW, sub=None)),
    "an empty subject": lambda: sign(claims(now_s=NOW, sub="")),
    "a subject with a blank": lambda: sign(claims(now_s=NOW, sub="alice ")),
    "a subject with NUL": lambda: sign(claims(now_s=NOW, sub="alice\0")),
    "a long subject": lambda: sign(claims(now_s=NOW, sub="a" * 1025)),
    "subject is a number": lambda: sign(claims(now_s=NOW, sub=7)),
    "scope is a number": lambda: sign(claims(now_s=NOW, scope=7)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_token_is_refused_with_a_reason_that_does_not_quote_it(name):
    text = BROKEN[name]()
    verdict = judged(text)
    assert (verdict.user, verdict.lifetime_ms) == ("", 0)
    assert verdict.reason.startswith("the token")
    assert not [part for part in text.split(".") if len(part) > 8 and part in verdict.reason]


def test_an_algorithm_that_is_not_set_is_refused():
    rules = TokenRules("file:///keys", issuer=ISSUER, audiences=(AUDIENCE,), algorithms=("RS256",))
    assert judged(sign(claims(now_s=NOW)), rules=rules).reason == "the token's algorithm is not allowed"
    assert judged(sign(claims(now_s=NOW), KEYS[1]), rules=rules).user


def test_another_claim_may_name_the_user():
    rules = TokenRules("file:///keys", issuer=ISSUER, audiences=(AUDIENCE,), subject_claim="azp")
    assert judged(sign(claims(now_s=NOW, azp="billing")), rules=rules).user == "billing"


def test_a_token_without_a_key_id_is_tried_with_each_key_that_fits():
    assert judged(sign(claims(now_s=NOW), kid=None)).user
    assert not judged(sign(claims(now_s=NOW), ec_key(9), kid=None)).user


def test_an_unknown_key_is_not_a_refusal_yet():
    with pytest.raises(UnknownKey):
        judged(sign(claims(now_s=NOW), ec_key(8)))


# Sets of keys


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_only_public_keys_for_signatures_count():
    odd = [
        OctKey.generate_key(256).as_dict(),
        rsa_key().as_dict(private=False) | {"use": "enc", "kid": "enc"},
        rsa_key(1, 1024).as_dict(private=False),
        ec_key().as_dict(private=False) | {"x": "AAAA", "kid": "beside the curve"},
        ec_key().as_dict(private=False) | {"key_ops": ["sign"], "kid": "signs"},
        ec_key().as_dict(private=False) | {"alg": "RS256", "kid": "wrong"},
        {"kty": 3},
        {},
    ]
    document = json.loads(key_set(ec_key())) | {"more": 1}
    found = read_keys(json.dumps({"keys": odd + document["keys"]}).encode())
    assert (list(found.by_id), found.left_out) == ([ec_key().kid], len(odd))
    with pytest.raises(BadKeys):
        read_keys(json.dumps({"keys": odd}).encode())


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"keys":{}}', b'{"keys":[]}', b"[" * 9999, b"\xff", b" " * (1 << 20) + b"{}"]
)
def test_a_document_without_keys_is_refused(data):
    with pytest.raises(BadKeys):
        read_keys(data)


# Where keys come from


class Documents:
    """A source that is steered by the test, and a clock."""

    def __init__(self):
        self.now_s = 0.0
        self.document = key_set(ec_key())
        self.reads = 0

    def read(self, _):
        self.reads += 1
        if isinstance(self.document, Exception):
            raise self.document
        return self.document


def test_the_last_good_keys_stay():
    documents = Documents()
    source = KeySource(RULES, documents.read)
    assert source.attempt() == 10_000
    for bad in (Unavailable("away"), b"<html>", b'{"keys":[]}', Rejected("no")):
        documents.document = bad
        source.attempt()
        assert source.keys is not None
        assert source.keys.knows(ec_key().kid)
    assert [source.attempt() for _ in range(5)] == [1600, 3200, 6400, 10_000, 10_000]
    documents.document = key_set(ec_key(1))
    source.attempt()
    assert not source.keys.knows(ec_key().kid)


def test_unknown_keys_ask_once_a_minute():
    documents = Documents()
    source = KeySource(RULES, documents.read, lambda: documents.now_s)
    source.start()
    wait_for(source)
    minute = UNKNOWN_S
    for now_s, is_asked in ((0.0, True), (1.0, False), (minute - 1, False), (minute, True), (minute + 1, False)):
        documents.now_s = now_s
        assert source.ask() is is_asked, now_s
        if is_asked:
            wait_for(source)
    assert documents.reads == 3


def wait_for(source):
    """Wait until the thread has read once more."""
    assert select.select([source.fd], [], [], PATIENCE_S)[0]
    os.eventfd_read(source.fd)


def test_a_file_is_read_and_must_be_a_small_regular_one(tmp_path):
    path = tmp_path / "keys with a blank.json"
    source = KeySource(TokenRules(f"file://{str(path).replace(' ', '%20')}"))
    source.attempt()
    assert source.keys is None
    path.write_bytes(key_set(ec_key()))
    source.attempt()
    assert source.keys is not None
    os.mkfifo(tmp_path / "pipe")
    KeySource(TokenRules(f"file://{tmp_path}/pipe")).attempt()
    (tmp_path / "large").write_bytes(b" " * ((1 << 20) + 1))
    assert KeySource(TokenRules(f"file://{tmp_path}/large")).attempt() == 100


def test_a_server_is_bounded_and_not_followed(monkeypatch):
    with Issuer() as issuer:
        url = f"{issuer.url}/keys"
        assert fetch(url, 1 << 20) == issuer.document
        with pytest.raises(Unavailable, match="more than 10 bytes"):
            fetch(url, 10)
        issuer.status, issuer.headers = 302, {"Location": f"{issuer.url}/elsewhere"}
        with pytest.raises(Unavailable, match="status 302, which is not followed"):
            fetch(url, 1 << 20)
        assert set(issuer.asked) == {"/keys"}
    with pytest.raises(Unavailable, match="cannot be reached"):
        fetch(url, 1 << 20)
    monkeypatch.setattr(fetching, "TOTAL_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unavailable):
        threading.Thread(target=drip, args=(silent,), daemon=True).start()
        fetch(f"http://127.0.0.1:{silent.getsockname()[1]}/", 1 << 20)


def drip(server):
    """A server whose answer never ends."""
    with server.accept()[0] as sock:
        try:
            sock.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                sock.sendall(b"X: y\r\n")
                select.select([], [], [], 0.05)
        except OSError:
            pass


def test_a_server_has_to_have_a_certificate_that_is_trusted(tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.write(tmp_path, "issuer", hosts=certificates.HOSTS))
    with Issuer(tls=context) as issuer:
        assert fetch(f"{issuer.url}/keys", 1 << 20, truststore=str(tmp_path / "ca.pem")) == issuer.document
        with pytest.raises(Unavailable, match="certificate is not taken"):
            fetch(f"{issuer.url}/keys", 1 << 20)


# Tokens of our clients


def test_a_client_gets_its_token_once_and_again_before_it_ends():
    with Issuer() as issuer:
        endpoint = TokenEndpoint(f"{issuer.url}/token", "svc-orders", "issuer-secret-5120", "topics")
        first = token_from(endpoint)
        assert token_from(endpoint) == first
        assert issuer.asked == ["/token"]
        assert verify(first.text, read_keys(issuer.document), RULES, first.ends_s - 60).user == "svc-orders"
        with pytest.raises(Rejected, match="no token for client 'svc-orders'") as failure:
            token_from(TokenEndpoint(f"{issuer.url}/token", "svc-orders", "wrong-secret"))
        assert "wrong-secret" not in failure.value.message + repr(endpoint) + repr(first)
        issuer.lifetime_s = 0
        short = TokenEndpoint(f"{issuer.url}/token", "svc-orders", "issuer-secret-5120", "other")
        token_from(short)
        token_from(short)
        assert issuer.asked.count("/token") == 4
    with pytest.raises(Unavailable):
        token_from(short)
    assert token_from(endpoint) == first


def test_a_token_in_a_file_is_read_for_each_login(tmp_path):
    path = tmp_path / "token"
    endpoint = TokenEndpoint(f"file://{path}")
    with pytest.raises(Unavailable, match="cannot be read"):
        token_from(endpoint)
    for user in ("a", "b"):
        path.write_text(token(user) + "\n")
        assert token_from(endpoint).text == path.read_text().strip()
    path.write_text("two words")
    with pytest.raises(Rejected):
        token_from(endpoint)

"""Sign-in to the console of a broker at an OpenID provider, and what hostile providers and strangers' links get."""

import hmac
import http.client
import json
import re
import urllib.parse

import psutil
import pytest
from console_visitor import Browser
from werkzeug.http import parse_cookie

import openid
from issuer import ec_key, encoded, sign
from millstream.cli.__main__ import main
from millstream.console.application import create
from millstream.console.cookies import LOGIN, SIGN_IN, name_of_cookie
from millstream.console.settings import Settings
from millstream.secure.tokens import sign_in
from millstream.testing.process import Broker
from waits import until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def provider():
    with openid.Provider() as running:
        yield running


@pytest.fixture(scope="module")
def broker(provider):
    settings = provider.settings(
        **{
            "listener.security.protocol.map": "A:PLAINTEXT,S:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "super.users": "User:ANONYMOUS",
            "connection.failed.authentication.delay.ms": 10,
            "audit.log": "on",
            "console.oidc.allowed.groups": "platform,on-call",
        }
    )
    with Broker(["orders", "secrets"], settings, listen="A://127.0.0.1:0,S://127.0.0.1:0", shards=1) as started:
        at = ["--data", str(started.data_dir)]
        assert main(["acl", "create", "User:ann", "read", "--topic", "orders", *at]) == 0
        yield started


@pytest.fixture(autouse=True)
def friendly(provider):
    """The provider is as it should be after each test."""
    was = {**vars(provider), "changes": {"groups": ["all", "on-call"]}, "document": {**provider.document}}
    vars(provider).update(was)
    yield
    vars(provider).update(was)


class Person(Browser):
    """A browser that goes to the provider and comes back."""

    def begin(self, target="/console/topics"):
        """The provider's page that the console names."""
        answer = self.get(f"/console/oidc/login?{urllib.parse.urlencode({'next': target})}")
        assert answer.status == 302, answer.text
        return answer.headers["Location"]

    def at_provider(self, page):
        """Where the provider sends the browser, as path and query."""
        parts = urllib.parse.urlsplit(page)
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        connection.request("GET", f"{parts.path}?{parts.query}")
        with connection.getresponse() as answer:
            assert answer.status == 302
            back = urllib.parse.urlsplit(answer.headers["Location"])
        assert back.netloc == self.host
        return f"{back.path}?{back.query}"

    def sign_in(self, target="/console/topics"):
        return self.get(self.at_provider(self.begin(target)), **{"Sec-Fetch-Site": "cross-site"})

    @property
    def login(self):
        """Name of the cookie that has the login."""
        return name_of_cookie(LOGIN, self.host)

    @property
    def signed_in(self):
        return bool(self.cookies.get(self.login))


def reason(answer):
    return re.search(r'role="alert">([^<]*)<', answer.text)[1]


def test_a_person_signs_in_acts_as_the_principal_and_signs_out(broker, provider):
    person = Person(broker)
    form = person.get("/console/login?next=/console/topics/orders")
    assert "/console/oidc/login?next=/console/topics/orders" in form.text
    answer = person.sign_in("/console/topics/orders")
    assert answer.status == 200
    assert 'content="0; url=/console/topics/orders"' in answer.text
    kept = [each for each in person.set if each.startswith(LOGIN)]
    assert "SameSite=Strict" in kept[0] and "HttpOnly" in kept[0]
    began = [each for each in person.set if each.startswith("millstream-sign-in")]
    assert "SameSite=Lax" in began[0] and "HttpOnly" in began[0] and "Path=/console/oidc" in began[0]
    assert openid.SECRET not in "".join(person.set) + answer.text
    page = person.get("/console/topics").text
    assert ">orders</a>" in page and "secrets" not in page and "User:ann" in page
    assert person.get("/console/audit").status == 403
    out = person.post("/console/logout")
    assert (out.status, out.headers["Location"]) == (303, "/console/login?out=1")
    assert "sign out there, too" in person.get("/console/login?out=1").text
    assert person.get("/console/topics").status == 302
    left = urllib.parse.urlsplit(person.get("/console/oidc/logout").headers["Location"])
    assert left.path == "/logout"
    back = urllib.parse.parse_qs(left.query)["post_logout_redirect_uri"]
    assert back == [f"{broker.http}/console/login"]
    audit = broker.data_dir / "audit" / "audit.jsonl"
    until(lambda: '"User:ann"' in audit.read_text())


def public_key_as_secret(payload):
    head = f"{encoded({'alg': 'HS256', 'kid': ec_key().kid})}.{encoded(payload)}"
    return f"{head}.{encoded(hmac.digest(ec_key().as_pem(private=False), head.encode(), 'sha256'))}"


BROKEN = {
    "another issuer": ({"iss": "http://127.0.0.1:1"}, sign, "of another issuer"),
    "another audience": ({"aud": "another"}, sign, "another audience"),
    "another client": ({"aud": [openid.CLIENT, "b"], "azp": "b"}, sign, "another client"),
    "another nonce": ({"nonce": "AAAA"}, sign, "another sign-in"),
    "no nonce": ({"nonce": None}, sign, "another sign-in"),
    "a nonce that is a list": ({"nonce": ["a"]}, sign, "another sign-in"),
    "a time that is over": ({"exp": 1_700_000_000, "iat": 1_600_000_000}, sign, "has expired"),
    "alg none": ({}, lambda claims: f"{encoded({'alg': 'none'})}.{encoded(claims)}.", "not a signed"),
    "the public key as a secret": ({}, public_key_as_secret, "algorithm is not allowed"),
    "a stranger's key": ({}, lambda claims: sign(claims, ec_key(7), kid=ec_key().kid), "signature is wrong"),
    "no token": ({}, lambda _: "", "not a signed"),
    "a huge token": ({}, lambda _: "a" * 70_000, "more than 64000 characters"),
    "no group": ({"groups": None}, sign, "none of the groups"),
    "another group": ({"groups": ["on-calls"]}, sign, "none of the groups"),
    "groups that are a number": ({"groups": 7}, sign, "none of the groups"),
    "a subject that is no name": ({"sub": "ann\n"}, sign, "no usable claim"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_token_that_is_not_for_this_sign_in_is_refused_in_words(broker, provider, name):
    changes, provider.sign, why = BROKEN[name]
    provider.changes = {**provider.changes, **changes}
    person = Person(broker)
    answer = person.sign_in()
    assert answer.status == 403
    assert why in reason(answer)
    assert not person.signed_in
    assert person.get("/console/topics").status == 302


def test_groups_may_be_words(broker, provider):
    provider.changes = {"groups": "platform others"}
    person = Person(broker)
    assert person.sign_in().status == 200
    assert person.signed_in


def test_an_answer_is_taken_once_and_only_by_the_browser_that_began(broker, provider):
    person, other = Person(broker), Person(broker)
    back = person.at_provider(person.begin())
    stolen = other.get(back)
    assert (stolen.status, "browser did not start this" in reason(stolen)) == (403, True)
    other.begin()
    assert "belongs to another sign-in" in reason(other.get(back))
    began = dict(person.cookies)
    assert person.get(back).status == 200
    person.cookies = began
    assert "used already" in reason(person.get(back))
    fresh = Person(broker)
    state = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(fresh.begin()).query))["state"]
    code = dict(urllib.parse.parse_qsl(back.partition("?")[2]))["code"]
    replayed = fresh.get(f"/console/oidc/callback?{urllib.parse.urlencode({'code': code, 'state': state})}")
    assert "gives no token for this sign-in" in reason(replayed)
    assert not fresh.signed_in and not other.signed_in


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ({"error": "access_denied", "error_description": "<b>no"}, "refuses the sign-in: &lt;b&gt;no"),
        ({"iss": "https://evil.example", "code": "c"}, "of another OpenID provider"),
        ({}, "has no code"),
    ],
)
def test_an_answer_without_a_code_says_why(broker, query, why):
    person = Person(broker)
    state = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(person.begin()).query))["state"]
    answer = person.get(f"/console/oidc/callback?{urllib.parse.urlencode({'state': state, **query})}")
    assert answer.status == 403
    assert why in answer.text


@pytest.mark.parametrize("target", ["//evil.example/", "https://evil.example/", "/console/\\evil", "/etc", "/\tevil"])
def test_a_sign_in_leads_to_no_other_site(broker, target):
    answer = Person(broker).sign_in(target)
    assert 'content="0; url=/console/"' in answer.text


def test_a_cookie_that_was_changed_begins_nothing(broker):
    person = Person(broker)
    back = person.at_provider(person.begin())
    name = name_of_cookie(SIGN_IN, person.host)
    person.cookies[name] = "x" + person.cookies[name]
    assert "browser did not start this" in reason(person.get(back))


def test_an_id_token_is_no_bearer_of_the_http_port(broker, provider):
    made = []
    provider.sign = lambda claims: made.append(sign(claims)) or made[0]
    assert Person(broker).sign_in().status == 200
    guard = guards(broker)
    for bearer in (made[0], "x"):
        assert Person(broker).get("/v1/brokers", Authorization=f"Bearer {bearer}").status == 401
    assert guards(broker) == guard, "a token where none are taken ended the guard"


def guards(broker):
    children = psutil.Process(broker.pid).children()
    return [each.pid for each in children if each.cmdline() and "guard" in " ".join(each.cmdline())]


def test_the_link_of_another_site_reaches_a_page_with_the_login(broker):
    person = Person(broker)
    person.sign_in()
    login = person.cookies.pop(person.login)
    first = person.get("/console/topics?q=o", **{"Sec-Fetch-Site": "cross-site"})
    assert (first.status, 'content="0; url=/console/topics?q=o"' in first.text) == (200, True)
    person.cookies[person.login] = login
    assert ">orders</a>" in person.get("/console/topics?q=o", **{"Sec-Fetch-Site": "same-origin"}).text


# A console of its own


@pytest.fixture
def alone():
    """The console of a cluster that takes the provider's tokens, with its provider."""
    with openid.Provider(secret="") as provider:
        provider.access_token = lambda claims: sign({**claims, "aud": "kafka"})
        settings = {
            "listener.security.protocol.map": "S:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/keys",
            "sasl.oauthbearer.expected.issuer": provider.url,
            "sasl.oauthbearer.expected.audience": f"kafka,{openid.CLIENT}",
            "super.users": "User:ann",
            "connection.failed.authentication.delay.ms": 10,
        }
        with Broker(None, settings, listen="S://127.0.0.1:0", shards=1) as broker:
            at = json.loads((broker.data_dir / "broker.json").read_text())["listeners"]["S"]
            own = sign_in.Provider(provider.url, openid.CLIENT)
            console = create(Settings(at, login="OAUTHBEARER", issuer=provider.url, provider=own))
            yield console, provider
            console.extensions["console"].close()


def visit(client, provider):
    """Sign in at the provider with a test client of Flask."""
    page = client.get("/oidc/login").headers["Location"]
    back = urllib.parse.urlsplit(provider.redirect(page))
    return client.get(f"{back.path}?{back.query}")


def test_a_console_of_its_own_acts_with_the_token_of_the_sign_in(alone):
    console, provider = alone
    client = console.test_client()
    assert client.get("/topics").status_code == 302
    assert visit(client, provider).status_code == 200
    page = client.get("/users")
    assert page.status_code == 200
    assert "ann" in page.text
    provider.access_token = None  # the access token is no JWT: the ID token is used
    second = console.test_client()
    assert visit(second, provider).status_code == 200
    assert second.get("/users").status_code == 200


HUGE = json.dumps({"keys": [], "more": "x" * (2 << 20)}).encode()


def test_a_provider_that_fails_is_an_error_in_words(alone, monkeypatch):
    console, provider = alone
    sessions = console.extensions["console"]
    client = console.test_client()

    def again():
        monkeypatch.setattr(sessions, "_provider", sign_in.Discovery(sessions.settings.provider))
        return visit(client, provider)

    provider.key_document = HUGE
    assert (again().status_code, "more than 1048576 bytes" in again().text) == (503, True)
    provider.status, provider.headers = 302, {"Location": f"{provider.url}/elsewhere"}
    assert "status 302, which is not followed" in again().text
    assert f"{provider.url}/elsewhere" not in provider.asked and "/elsewhere" not in provider.asked
    for change, why in (
        ({"issuer": "https://evil.example"}, "it says that it is"),
        ({"token_endpoint": "http://192.0.2.1/token"}, "token_endpoint is not https"),
        ({"jwks_uri": "file:///etc/passwd"}, "jwks_uri is not https"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint is not https"),
        ({"end_session_endpoint": "ftp://x/"}, "end_session_endpoint is not https"),
        ({"token_endpoint": None}, "is not its document"),
    ):
        document, provider.document = provider.document, {**provider.document, **change}
        monkeypatch.setattr(sessions, "_provider", sign_in.Discovery(sessions.settings.provider))
        answer = client.get("/oidc/login")
        provider.document = document
        assert (answer.status_code, why in answer.text) == (503, True), change
    provider.close()
    monkeypatch.setattr(sessions, "_provider", sign_in.Discovery(sessions.settings.provider))
    asked = len(provider.asked)
    for _ in range(3):
        answer = client.get("/oidc/login")
        assert (answer.status_code, "cannot be reached" in answer.text) == (503, True)
    assert len(provider.asked) == asked
    assert not parse_cookie(client.get_cookie("session") or "")


def test_a_strangers_link_does_not_end_a_session(alone):
    console, provider = alone
    client = console.test_client()
    visit(client, provider)
    other = console.test_client()
    for path in ("/oidc/callback?code=c&state=s", "/oidc/login", "/oidc/logout", "/topics"):
        sent = other.get(path, headers={"Sec-Fetch-Site": "cross-site"}).headers.getlist("Set-Cookie")
        assert not [each for each in sent if each.startswith("millstream-console")], path

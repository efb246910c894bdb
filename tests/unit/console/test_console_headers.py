"""The console and headers that are no addresses: a page or a refusal, never a fault; and names of cookies."""

import pytest

from millstream.console.application import _place, create
from millstream.console.cookies import LOGIN, name_of_cookie
from millstream.console.settings import Settings

ODD = ["http://[", "[", "http://[::1", "//]", "http://a:b:c", ":", "::", "\\x", "http://%zz", "http://u@h/[", "é"]


@pytest.fixture(scope="module")
def browser():
    hosts = ("127.0.0.1", "localhost", "::1")
    return create(Settings("127.0.0.1:1", login="PLAIN", hosts=hosts)).test_client()


@pytest.mark.parametrize("name", ["Host", "Origin", "Referer", "Cookie", "Content-Type", "If-None-Match", "Range"])
@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("path", ["/login", "/theme", "/logout"])
def test_a_header_that_is_no_address_gets_a_page(browser, name, value, path):
    headers = {"Origin": "http://localhost", name: value}
    for method in ("get", "post"):
        found = getattr(browser, method)(path, headers=headers)
        assert found.status_code in (200, 302, 400, 403, 405, 421), (method, found.status_code)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:9644", f"{LOGIN}-9644"),
        ("[::1]:9645", f"{LOGIN}-9645"),
        ("console.example.org", LOGIN),
        ("", LOGIN),
        ("a:b=c; d", LOGIN),
    ],
)
def test_a_cookie_is_for_the_port_that_the_browser_asked(host, name):
    assert name_of_cookie(LOGIN, host) == name


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/", "cluster.overview"),
        ("/brokers/3", "cluster.brokers"),
        ("/settings", "cluster.settings"),
        ("/transaction?id=x", "cluster.transactions"),
        ("/topics/a/messages", "topics.topics"),
        ("/topics/a/change", "topics.topics"),
        ("/topics/a/produce", "topics.topics"),
        ("/new-topic", "topics.topics"),
        ("/group?id=a", "groups.groups"),
        ("/group/reset?id=a", "groups.groups"),
        ("/settings/change?broker=0&name=a", "cluster.settings"),
        ("/users", "rights.rules"),
        ("/audit", "broker.tiers"),
        ("/login", ""),
    ],
)
def test_every_page_has_its_place_in_the_navigation(browser, path, place):
    with browser.application.test_request_context(path):
        assert _place() == place

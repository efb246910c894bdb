"""The HTTP port against clients that ask for nothing, for too much, or for no URL, and with bodies and methods."""

import http.client
import json
import select
import socket
from contextlib import suppress

import pytest

from millstream.admin import http as http_port
from millstream.admin.access import Access
from millstream.admin.http import HttpServer
from millstream.admin.routing import HttpError, Response, Right, Router, dump
from millstream.errors import Rejected, Unavailable
from millstream.model.access import Operation
from millstream.model.error_code import ErrorCode

NAMES = ["Broker-1.example.org", "*.brokers.svc"]
JSON = {"Content-Type": "application/json"}


def broken(request):
    raise ZeroDivisionError


def refusing(error):
    def handler(request):
        raise error

    return handler


def echo(request):
    return Response(dump({"thing": request.variables["thing"], "query": request.query, "body": request.json()}))


def whole(request):
    return Response(dump([request.method, request.target, request.headers["x-own"], request.body.decode()]))


SEE = Right(Operation.DESCRIBE)


def own_form(error):
    return Response(dump({"error_code": error.status}), error.status)


def make_router(counted):
    router = Router(lambda: counted.append("other"))
    router.add("GET", "/metrics", lambda request: Response(b"page\n", content_type="text/plain"), needs=None)
    router.add("GET", "/page", lambda request: Response(b"page\n", content_type="text/html"), needs=SEE)
    router.add("POST", "/things/{thing}/versions", echo, body_bytes_max=100, needs=SEE)
    router.add(
        "DELETE", "/things/{thing}", lambda request: Response(b"", 204), count=lambda: counted.append("own"), needs=SEE
    )
    router.mount(
        "mode", whole, needs=lambda _: (), body_bytes_max=4, count=lambda: counted.append("mounted"), failure=own_form
    )
    router.add("GET", "/broken", broken, needs=SEE)
    router.add("GET", "/rejected", refusing(Rejected("no such thing", ErrorCode.INVALID_TOPIC_EXCEPTION)), needs=SEE)
    router.add("GET", "/away", refusing(Unavailable("a shard is silent")), needs=SEE)
    router.add("GET", "/gone", refusing(HttpError(410, "GONE", "it was here")), needs=SEE)
    return router


@pytest.fixture
def counted():
    return []


@pytest.fixture
def server(monkeypatch, counted):
    monkeypatch.setattr(http_port, "OPEN_MAX", 3)
    listener = socket.create_server(("127.0.0.1", 0))
    served = HttpServer(listener, make_router(counted), Access(NAMES))
    served.start()
    yield served
    served.stop()


def address(server):
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def connected(server):
    return socket.create_connection(address(server), timeout=60)


def ask(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(*address(server), timeout=60)
    try:
        connection.request(method, path, body, (JSON if body else {}) | (headers or {}))
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_connections_that_ask_for_nothing_are_bounded_and_make_room_when_they_go(server):
    silent = [connected(server) for _ in range(3)]
    with connected(server) as one_more:
        assert one_more.recv(1) == b"", "each connection costs a thread and a descriptor of the supervisor"
    for sock in silent:
        sock.close()
    answer = b""
    while not answer:  # a closed connection is noticed a little later
        with connected(server) as sock:
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            try:
                answer = sock.makefile("rb").read()
            except ConnectionResetError:
                continue
    assert answer.endswith(b"page\n")


@pytest.mark.parametrize(
    ("sent", "said"),
    [(b"GET /page HTTP/1.1\r\nx: ", b""), (b"POST /things/a/versions HTTP/1.1\r\nContent-Length: 90\r\n\r\n", b"408")],
    ids=["head", "body"],
)
def test_a_request_that_comes_by_single_bytes_ends(server, monkeypatch, sent, said):
    monkeypatch.setattr(http_port, "HEAD_S", 0.2)
    monkeypatch.setattr(http_port, "BODY_S", 0.2)
    with connected(server) as sock:
        sock.sendall(sent.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n"))
        with suppress(ConnectionError):
            while not select.select([sock], [], [], 0.01)[0]:
                sock.sendall(b"1")
            assert said in sock.recv(20)


@pytest.mark.parametrize("name", ["Host", "Origin", "Referer"])
@pytest.mark.parametrize(
    "value", ["http://[", "[", "http://[::1", "//]", "http://a:b:c", ":", "::", "\\x", "http://%zz"]
)
def test_a_header_that_is_no_address_gets_an_answer(server, name, value):
    assert ask(server, "GET", "/page", headers={name: value})[0] in (200, 403)


def test_a_route_gets_its_variables_the_query_and_the_body(server):
    status, headers, body = ask(server, "POST", "/things/a%2Fb%20c/versions?normalize=true", b'{"schema": 1}')
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == {"thing": "a/b c", "query": {"normalize": "true"}, "body": {"schema": 1}}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
def test_a_mounted_handler_gets_requests_as_they_are_sent(server, counted, method):
    status, _, body = ask(server, method, "/mode/a%2Fb%ff//c?force=1&force=2", b"body", {"X-Own": "h"})
    assert status == 200
    assert json.loads(body) == [method, "/mode/a%2Fb%ff//c?force=1&force=2", "h", "body"]
    assert counted == ["mounted"]


def test_a_mounted_handler_gives_refusals_their_form(server):
    status, _, body = ask(server, "PUT", "/mode", b"12345")
    assert (status, json.loads(body)) == (413, {"error_code": 413})
    assert ask(server, "GET", "/modest")[0] == 404


def test_head_is_answered_as_get_without_the_body(server):
    status, headers, body = ask(server, "HEAD", "/metrics")
    assert (status, headers["Content-Length"], body) == (200, "5", b"")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "name"),
    [
        ("GET", "/nothing", None, 404, "NOT_FOUND"),
        ("POST", "/metrics", None, 405, "METHOD_NOT_ALLOWED"),
        ("BREW", "/metrics", None, 501, "NOT_IMPLEMENTED"),
        ("POST", "/things/s/versions", b"{", 400, "INVALID_JSON"),
        ("POST", "/things/s/versions", b" " * 101, 413, "BODY_TOO_LARGE"),
        ("GET", "/metrics", b"unasked", 413, "BODY_TOO_LARGE"),
        ("GET", "/rejected", None, 400, "INVALID_TOPIC_EXCEPTION"),
        ("GET", "/away", None, 503, "KAFKA_STORAGE_ERROR"),
        ("GET", "/gone", None, 410, "GONE"),
        ("GET", "/%ff", None, 400, "INVALID_URL"),
    ],
)
def test_an_error_is_json_with_a_name_and_a_sentence(server, method, path, body, status, name):
    answered, headers, text = ask(server, method, path, body)
    assert answered == status
    assert headers["Content-Type"] == "application/json"
    said = json.loads(text)
    assert said["error"] == name
    assert said["message"]


def test_a_method_that_a_path_does_not_know_is_refused_with_those_that_it_knows(server):
    status, headers, _ = ask(server, "PUT", "/metrics")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_a_fault_of_a_handler_is_one_answer_and_one_line_in_the_log(server, capfd):
    status, _, body = ask(server, "GET", "/broken")
    assert (status, json.loads(body)["error"]) == (500, "INTERNAL_ERROR")
    assert "HTTP GET /broken failed" in capfd.readouterr().err
    assert ask(server, "GET", "/metrics")[0] == 200


def test_a_body_without_a_length_is_refused(server):
    head = {"Transfer-Encoding": "chunked"}
    status, _, body = ask(server, "POST", "/things/s/versions", b"0\r\n\r\n", head)
    assert (status, json.loads(body)["error"]) == (411, "LENGTH_REQUIRED")


def test_a_body_that_ends_early_is_refused(server):
    with connected(server) as sock:
        sock.sendall(
            b"POST /things/s/versions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
        )
        sock.shutdown(socket.SHUT_WR)
        answer = sock.makefile("rb").read()
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert b"9 bytes of the body did not arrive" in answer


def test_what_is_no_http_is_refused_in_json(server):
    with connected(server) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = sock.makefile("rb").read()
    assert json.loads(answer.split(b"\r\n\r\n")[-1])["error"] == "BAD_REQUEST"


def test_what_is_no_url_is_refused():
    with pytest.raises(HttpError) as refused:
        make_router([]).find("GET", "http://[")
    assert refused.value.status == 400


CHANGE = ("POST", "/things/s/versions", b'{"schema": 1}')


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "text/plain; x=application/json",
        "multipart/form-data; boundary=x",
        "json",
        ", ",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "text/plain, application/json",
    ],
)
def test_a_change_is_taken_as_json_only(server, kind):
    head = {"Content-Type": kind} if kind is not None else {}
    connection = http.client.HTTPConnection(*address(server), timeout=60)
    connection.request(*CHANGE, head)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    connection.close()
    assert ask(server, *CHANGE, {"Content-Type": "Application/JSON; charset=utf-8"})[0] == 200


@pytest.mark.parametrize("request_of", [CHANGE, ("GET", "/page"), ("DELETE", "/things/s"), ("PUT", "/mode", b"{}")])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost", "http://127.0.0.1:1", ""])
def test_no_page_of_another_origin_gets_an_answer(server, counted, request_of, origin):
    head = {"Origin": origin, "X-Own": "h"}
    status, _, body = ask(server, *request_of, *([None] * (3 - len(request_of))), head)
    assert status == 403
    assert json.loads(body).get("error") in ("FOREIGN_ORIGIN", None)
    assert not counted, "no handler ran"
    own = f"http://{':'.join(map(str, address(server)))}"
    assert ask(server, *request_of, *([None] * (3 - len(request_of))), head | {"Origin": own})[0] in (200, 204)


@pytest.mark.parametrize("request_of", [CHANGE, ("GET", "/page"), ("PUT", "/mode", b"{}")])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "", "localhost.evil.example", "1.2.3.4.evil.example", "brokers.svc"]
)
def test_a_name_that_a_page_chose_gets_no_answer_even_from_its_own_origin(server, counted, request_of, host):
    head = {"Host": host, "Origin": f"http://{host}", "X-Own": "h"}
    status = ask(server, *request_of, *([None] * (3 - len(request_of))), head)[0]
    assert status == 403
    assert not counted
    assert ask(server, "GET", "/metrics", None, head)[0] == 200, "a scraper may use any name"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9644",
        "a.localhost",
        "127.0.0.1:1",
        "[::1]:9644",
        "10.1.2.3",
        "broker-1.EXAMPLE.org.",
        "broker-1.example.org:9644",
        "a.b.brokers.svc:1",
    ],
)
def test_addresses_loopback_names_and_allowed_names_get_an_answer(server, host):
    assert ask(server, "GET", "/page", None, {"Host": host})[2] == b"page\n"


def test_a_request_without_a_host_is_answered_and_one_with_two_is_not(server):
    for hosts, status in ((b"", b"200"), (b"Host: localhost\r\nHost: localhost\r\n", b"400")):
        with connected(server) as sock:
            sock.sendall(b"GET /page HTTP/1.0\r\n" + hosts + b"\r\n")
            assert sock.makefile("rb").readline().split()[1] == status


def test_a_star_allows_any_name():
    assert Access(["*"]).knows("evil.example")


def test_requests_are_counted_once_by_their_route(server, counted):
    ask(server, "GET", "/metrics")
    ask(server, "DELETE", "/things/s")
    ask(server, "GET", "/nothing")
    assert counted == ["other", "own", "other"]


def test_a_start_does_not_wait_for_the_resolver(monkeypatch):
    def slow(name=""):
        raise AssertionError(f"asked who {name} is")

    monkeypatch.setattr(socket, "getfqdn", slow)
    server = HttpServer(socket.create_server(("127.0.0.1", 0)), make_router([]), Access([]))
    server.start()
    try:
        assert ask(server, "GET", "/metrics")[2] == b"page\n"
    finally:
        server.stop()

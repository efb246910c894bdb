"""The console's pages about Kafka Connect, against a worker that answers as Connect's REST documentation says."""

import base64
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millstream.cli.__main__ import main
from millstream.console import connect, serve
from millstream.console.application import create
from millstream.console.connect import connect_access
from millstream.console.settings import Settings
from millstream.errors import Rejected
from waits import PATIENCE_S, until

pytestmark = pytest.mark.process

OWN = {"Origin": "http://localhost"}
HOSTILE = '"><script>alert(1)</script>/..'


class Worker(BaseHTTPRequestHandler):
    """One request to the fake worker; its server has the state."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, document=None, **headers):
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message):
        self.answer(status, {"error_code": status, "message": message})

    def do_any(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        at = urllib.parse.urlsplit(self.path)
        parts = [urllib.parse.unquote(part) for part in at.path.strip("/").split("/") if part]
        self.server.asked.append((self.command, self.path, self.headers.get("Authorization")))
        if self.server.mood(self):
            return None
        connectors = self.server.connectors
        match self.command, parts:
            case "GET", []:
                return self.answer(200, {"version": "4.3.1", "commit": "c", "kafka_cluster_id": "the-cluster"})
            case "GET", ["connectors"] if "expand=status" in at.query:
                return self.answer(200, {name: {"status": self.status(name)} for name in connectors})
            case "GET", ["connectors"]:
                return self.answer(200, list(connectors))
            case _, ["connectors", name, *_] if name not in connectors:
                return self.refuse(404, f"No status found for connector {name}")
            case "GET", ["connectors", name, "status"]:
                return self.answer(200, self.status(name))
            case "GET", ["connectors", name]:
                return self.answer(
                    200, {"name": name, "config": connectors[name]["config"], "tasks": [], "type": "sink"}
                )
            case "PUT", ["connectors", name, "pause" | "resume" as action]:
                connectors[name]["state"] = {"pause": "PAUSED", "resume": "RUNNING"}[action]
                return self.answer(202)
            case "POST", ["connectors", name, "restart"]:
                assert at.query in ("includeTasks=true&onlyFailed=true", "includeTasks=true&onlyFailed=false")
                connectors[name].update(state="RUNNING", tasks=["RUNNING"] * len(connectors[name]["tasks"]))
                return self.answer(202, self.status(name))
            case "POST", ["connectors", name, "tasks", number, "restart"]:
                connectors[name]["tasks"][int(number)] = "RUNNING"
                return self.answer(204)
        return self.refuse(405, "HTTP 405 Method Not Allowed")

    do_GET = do_PUT = do_POST = do_any  # noqa: N815

    def status(self, name):
        one = self.server.connectors[name]
        tasks = [{"id": n, "state": state, "worker_id": "w1:8083"} for n, state in enumerate(one["tasks"])]
        for task in tasks:
            if task["state"] == "FAILED":
                task["trace"] = "org.apache.kafka.connect.errors.ConnectException: no <b>route</b>\n\tat Sink.put"
        state = {"state": one["state"], "worker_id": "w1:8083"}
        return {"name": name, "connector": state, "tasks": tasks, "type": "sink"}


class Fake(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Worker)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked = []
        self.mood = lambda _: False
        self.connectors = {
            "to-files": {
                "state": "RUNNING",
                "tasks": ["RUNNING", "FAILED"],
                "config": {"topics": "orders", "connection.password": "s3cret", "name": "to-files", "empty": None},
            },
            HOSTILE: {"state": "PAUSED", "tasks": [], "config": {}},
        }


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(connect, "TIMEOUT_S", PATIENCE_S)


@pytest.fixture
def worker():
    with Fake() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def open_console():
    opened = []

    def opening(*urls, properties=None, **more):
        accesses = tuple(connect_access(url, properties or {}) for url in urls)
        opened.append(create(Settings("127.0.0.1:1", connects=accesses, **more)))
        return opened[-1].test_client()

    yield opening
    for each in opened:
        each.extensions["console"].close()


def send(console, path, **fields):
    token = re.search(r'name="token" value="([^"]+)"', console.get("/connect").text)[1]
    return console.post(path, data={"token": token, **fields}, headers=OWN)


def test_connectors_are_listed_with_their_tasks_and_what_failed(worker, open_console):
    console = open_console(worker.url)
    page = console.get("/connect").text
    assert "2 connectors" in page and "1 of 2" in page and "a task failed" in page
    assert "Kafka 4.3.1, of cluster" in page and "the-cluster" in page
    assert "<script>alert" not in page
    assert "to-files" not in console.get("/connect?q=nothing").text
    one = console.get("/connect/0?name=to-files").text
    assert "no &lt;b&gt;route&lt;/b&gt;" in one and "w1:8083" in one
    assert "s3cret" not in one and "connection.<wbr>password" in one and "hidden" in one
    assert console.get(f"/connect/0?{urllib.parse.urlencode({'name': HOSTILE})}").status_code == 200


def test_a_connector_is_paused_resumed_and_restarted(worker, open_console):
    console = open_console(worker.url)
    for action, state in (("pause", "PAUSED"), ("resume", "RUNNING")):
        moved = send(console, f"/connect/0/{action}", name="to-files")
        assert (moved.status_code, moved.headers["Location"]) == (303, "/connect/0?name=to-files")
        assert worker.connectors["to-files"]["state"] == state
        assert "to-files will" in console.get(moved.headers["Location"]).text
    assert send(console, "/connect/0/restart", name="to-files", task="1").status_code == 303
    assert worker.connectors["to-files"]["tasks"] == ["RUNNING", "RUNNING"]
    worker.connectors["to-files"]["tasks"][0] = "FAILED"
    assert send(console, "/connect/0/restart-failed", name="to-files").status_code == 303
    assert worker.connectors["to-files"]["tasks"] == ["RUNNING", "RUNNING"]
    assert send(console, "/connect/0/restart", name=HOSTILE).status_code == 303
    quoted = urllib.parse.quote(HOSTILE, safe="")
    assert ("POST", f"/connectors/{quoted}/restart?includeTasks=true&onlyFailed=false", None) in worker.asked


@pytest.mark.parametrize(
    ("path", "fields", "status", "said"),
    [
        ("/connect/0/pause", {"name": "none"}, 400, "No status found for connector none (404)"),
        ("/connect/0/delete", {"name": "to-files"}, 404, ""),
        ("/connect/7/pause", {"name": "to-files"}, 404, "no Connect cluster 7"),
        ("/connect/0/pause", {"name": ".."}, 400, "is no name of a connector"),
        ("/connect/0/restart", {"name": "to-files", "task": "1/../x"}, 400, "is no number of a task"),
    ],
)
def test_what_cannot_be_done_is_said(worker, open_console, path, fields, status, said):
    answer = send(open_console(worker.url), path, **fields)
    assert answer.status_code == status
    assert said in answer.text
    assert {one[0] for one in worker.asked} <= {"GET", "PUT"}
    assert worker.connectors["to-files"]["state"] == "RUNNING"


def test_a_change_without_the_forms_token_or_of_a_read_only_console_reaches_no_worker(worker, open_console):
    console = open_console(worker.url)
    assert console.post("/connect/0/pause", data={"name": "to-files"}, headers=OWN).status_code == 403
    reading = open_console(worker.url, read_only=True)
    assert "read only" in send(reading, "/connect/0/pause", name="to-files").text
    assert "Pause" not in reading.get("/connect/0?name=to-files").text
    assert {one[0] for one in worker.asked} == {"GET"}


def silence(request):
    request.server.held.wait(60)
    request.close_connection = True
    return True


def test_a_worker_that_is_silent_or_slow_is_a_sentence_beside_the_others(worker, open_console, monkeypatch):
    monkeypatch.setattr(connect, "TIMEOUT_S", 1.0)
    with Fake() as dead:
        dead.held, dead.mood = threading.Event(), silence
        thread = threading.Thread(target=dead.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()

        def both_are_shown():
            page = open_console(dead.url, worker.url).get("/connect").text
            assert f"Kafka Connect at {dead.url}: no answer within 1 s" in page
            return "to-files" in page

        until(both_are_shown, "the worker that answers has a second, too")
        dead.held.set()
        dead.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        (lambda r: r.answer(302, Location="http://127.0.0.1:1/") or True, "redirects, which is not followed"),
        (lambda r: r.answer(200, ["a"]) or True, "is not Kafka Connect 2.3 or later"),
        (lambda r: r.refuse(409, "Cannot complete request momentarily") or True, "rebalances, try again: Cannot"),
        (lambda r: r.refuse(401, "User cannot access the resource.") or True, "refuses the login: User cannot"),
        (lambda r: r.refuse(500, "Request timed out") or True, "Request timed out (500)"),
    ],
)
def test_other_answers_are_told_in_words(worker, open_console, mood, said):
    worker.mood = mood
    page = open_console(worker.url).get("/connect")
    assert page.status_code == 200
    assert said in page.text
    assert "No connectors yet" not in page.text


def test_an_answer_without_an_end_is_cut(worker, open_console, monkeypatch):
    monkeypatch.setattr(connect, "BYTES_MAX", 1000)

    def much(request):
        request.answer(200, {"version": "x" * 5000})
        return True

    worker.mood = much
    assert "has more than 0 MiB" in open_console(worker.url).get("/connect").text


def test_the_login_is_of_the_file_and_for_the_worker_alone(worker, open_console, tmp_path, monkeypatch):
    open_console(worker.url, properties={"connect.basic.auth.user.info": "ops:ops-word"}).get("/connect")
    wanted = f"Basic {base64.b64encode(b'ops:ops-word').decode()}"
    assert {one[2] for one in worker.asked} == {wanted}
    for url, properties, said in (
        ("http://far.example:8083", {"connect.basic.auth.user.info": "a:b"}, "would cross it in clear"),
        ("http://a:b@127.0.0.1:1", {}, "is no URL of Kafka Connect"),
        ("file:///etc/passwd", {}, "is no URL of Kafka Connect"),
        ("http://127.0.0.1:1", {"connect.basic.user": "x"}, "there is no such setting"),
    ):
        with pytest.raises(Rejected, match=said):
            connect_access(url, properties)
    served = []
    monkeypatch.setattr(serve, "serve", lambda clusters, listener, ready: served.extend(clusters))
    file = tmp_path / "prod.properties"
    file.write_text("connect.basic.auth.user.info=ops:ops-word\n")
    both = ["--bootstrap", "prod=b1", "--bootstrap", "dev=b2", "--config", f"prod={file}", "--listen", "127.0.0.1:0"]
    assert main(["console", *both, "--connect", "prod=http://[::1]:1", "--connect", "dev=http://127.0.0.1:2"]) == 0
    prod, dev = served
    assert [access.url for access in (*prod.connects, *dev.connects)] == ["http://[::1]:1", "http://127.0.0.1:2"]
    assert (prod.connects[0].authorization, dev.connects[0].authorization) == (wanted, "")
    assert "ops-word" not in repr(prod.connects)


def test_visitors_do_not_act_as_the_console_at_connect(tmp_path, capsys):
    file = tmp_path / "all.properties"
    file.write_text("connect.basic.auth.user.info=ops:ops-word\n")
    given = ["--command-config", str(file), "--connect", "http://127.0.0.1:1", "--login", "PLAIN"]
    assert main(["console", "--bootstrap", "b1:1", "--listen", "127.0.0.1:0", *given]) == 2
    assert "every visitor would act as the console at Kafka Connect" in capsys.readouterr().err


def test_a_console_without_connect_says_how_to_have_it(open_console):
    assert "--connect http://127.0.0.1:8083" in open_console().get("/connect").text

"""``millstream cluster`` and ``millstream dev``: what is shown, and what is refused before anything is started."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from millstream.cli import broker_http, cluster_changes, identity, topic

STATUS = {
    "cluster_id": "c",
    "node_id": 1,
    "controller": 2,
    "healthy": False,
    "problems": ["brokers that are not alive: 3; start each of them again, with its data directory"],
    "brokers": [
        {"id": 2, "alive": True, "address": "h:1", "peer": "h:2", "rack": "a", "shards": 4, "leaders": 7,
         "replicas": 9, "release": "0.1.0", "mode": "serving"},
        {"id": 3, "alive": False, "address": "h:3", "peer": "h:4", "rack": "", "shards": 4, "leaders": 0,
         "replicas": 9, "release": "0.1.0", "mode": "serving"},
    ],
    "topics": 2,
    "partitions": 9,
    "leaderless_count": 0,
    "leaderless": [],
    "under_replicated_count": 25,
    "under_replicated": [{"topic": "orders", "partition": index} for index in range(25)],
    "moves_count": 1,
    "moves": [{"topic": "audit", "partition": 4, "replicas": [1, 2], "target": [1, 3]}],
}  # fmt: skip


@pytest.fixture
def status(monkeypatch):
    """A broker's HTTP port that answers ``/v1/cluster`` with this dictionary."""
    told = dict(STATUS)
    asked = told["asked"] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/v1/cluster"
            self.send_response(told.pop("code", 200))
            self.end_headers()
            self.wfile.write(json.dumps({name: value for name, value in told.items() if name != "asked"}).encode())

        def do_POST(self):
            assert self.path == "/v1/cluster"
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(request)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": told["results"]}).encode())
            told.update(told.pop("afterwards", {}))

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    told["url"] = f"http://127.0.0.1:{server.server_port}"
    endpoint = SimpleNamespace(value=told.pop("url"))
    monkeypatch.setattr(broker_http, "admin_client", lambda _: None)
    monkeypatch.setattr(broker_http, "broker_configs", lambda *_: {broker_http.HTTP_ENDPOINT: endpoint})
    yield told
    server.shutdown()
    server.server_close()


def test_health_tells_what_is_wrong_and_its_exit_code_says_so(millstream, status):
    shown = millstream("cluster", "health")
    assert (shown.code, shown.err) == (1, "")
    assert "health            not healthy\n" in shown.out
    assert "brokers           1 of 2 alive\n" in shown.out
    assert "\n- brokers that are not alive: 3; start each" in shown.out
    assert shown.out.count("\norders ") == 20
    assert "and 5 more\n" in shown.out
    assert shown.out.split()[-4:] == ["audit", "4", "1,2", "1,3"]
    status |= {"healthy": True, "problems": [], "under_replicated": []}
    assert millstream("cluster", "health").code == 0
    status["installs"] = [
        {"group": 7, "log": "t/0", "source": 2, "first_offset": 100, "next_offset": 150, "end_offset": 300}
    ]
    rows = [line.split() for line in millstream("cluster", "health").out.splitlines()[-2:]]
    assert rows == [["t/0", node, "2", "150", "300", "25"] for node in ("1", "2")], "broker 2 is asked, too"
    assert json.loads(millstream("cluster", "health", "--json").out)["healthy"] is True


def test_brokers_are_listed_with_the_controller_marked(millstream, status):
    lines = millstream("cluster", "brokers").out.splitlines()
    assert lines[1].split() == ["2*", "alive", "h:1", "h:2", "a", "4", "7", "9", "0.1.0"]
    assert lines[2].split() == ["3", "not", "alive", "h:3", "h:4", "-", "4", "0", "9", "0.1.0"]
    assert lines[3] == "* the controller"
    assert [broker["id"] for broker in json.loads(millstream("cluster", "brokers", "--json").out)] == [2, 3]


def test_what_the_broker_refuses_is_said_in_its_words(millstream, status):
    status |= {"code": 503, "message": "the broker is stopping"}
    assert millstream("cluster", "health").err.endswith("/v1/cluster: the broker is stopping\n")


DONE = {"error": None, "message": None, "topic": None, "moves": 0}


def test_a_broker_is_drained_and_the_command_waits_for_its_leaderships(millstream, status):
    drained = dict(STATUS["brokers"][0], leaders=2, leads_alone=2, mode="drained")
    status |= {"results": [DONE], "afterwards": {"brokers": [drained]}}
    done = millstream("cluster", "drain", 2)
    assert (done.code, done.err) == (0, "broker 2 leads nothing that another one could lead\n")
    assert status["asked"] == [{"type": "set_broker_mode", "node": 2, "mode": "drained"}]
    assert "alive, drained" in millstream("cluster", "brokers").out


def test_replicas_move_where_they_shall_and_what_is_wrong_is_said_before_or_by_the_controller(
    millstream, status, monkeypatch
):
    status["results"] = [DONE]
    status["moves"] = []
    monkeypatch.setattr(cluster_changes, "replicas_of", lambda topic, bootstrap: {3: [1, 4]})
    moved = millstream("cluster", "move", "orders:3", "--to", "1,2", "--json")
    assert json.loads(moved.out) == {"result": "orders:3 is where it shall be"}
    assert status["asked"] == [{"type": "reassign_partitions", "partitions": [["orders", 3, [1, 2]]]}]
    assert "give either --to" in millstream("cluster", "move", "orders:3").err
    assert "are numbers" in millstream("cluster", "move", "orders:x", "--cancel").err
    status["results"] = [DONE | {"error": "INVALID_REPLICATION_ASSIGNMENT", "message": "there is no broker 9"}]
    refused = millstream("cluster", "move", "orders:3", "--to", "9", "--execute")
    assert refused.err.endswith("there is no broker 9\n")


def test_a_move_that_leaves_fewer_replicas_is_only_shown(millstream, status, monkeypatch):
    held = {0: [1, 2, 3], 1: [1, 2]}
    monkeypatch.setattr(cluster_changes, "replicas_of", lambda topic, bootstrap: held)
    shown = millstream("cluster", "move", "orders", "--to", "1,4", "--json")
    assert json.loads(shown.out) == [{"partition": "orders:0", "replicas": [1, 2, 3], "new": [1, 4], "deleted": [2, 3]}]
    assert "--execute does it" in millstream("cluster", "move", "orders:0", "--to", "1,1").err
    assert "asked" not in status or not status["asked"]
    monkeypatch.setattr(topic, "admin_client", lambda bootstrap: None)
    altered = millstream("topic", "alter", "orders", "--replication", "2")
    assert "'orders' would have 2 of 3 replicas; --execute does it" in altered.err


def test_work_that_takes_too_long_goes_on_without_the_command(millstream, status):
    status["results"] = [DONE]
    late = millstream("cluster", "decommission", 2, "--timeout", 0.1)
    assert (late.code, "10 are left after 0 s; the work continues" in late.err) == (1, True)
    begun = millstream("cluster", "decommission", 2, "--no-wait")
    assert "it has started" in begun.err
    assert "replicas are spread" in millstream("cluster", "rebalance").err


def test_health_shows_what_moves(millstream, status):
    status["moves_count"] = 1
    status["moves"] = [{"topic": "orders", "partition": 3, "replicas": [1, 2, 3], "target": [1, 2]}]
    shown = millstream("cluster", "health").out
    assert "moving            1\n" in shown
    assert shown.splitlines()[-1].split() == ["orders", "3", "1,2,3", "1,2"]


def test_dev_touches_no_directory_that_is_not_its_own(millstream, tmp_path):
    (tmp_path / "precious").write_text("x")
    refused = millstream("dev", "cluster", "--data", tmp_path)
    assert (refused.code, "is not empty and holds no dev cluster" in refused.err) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    assert "holds no dev cluster; 'millstream dev cluster" in millstream("dev", "restart", 1, "--data", tmp_path).err


def test_dev_keeps_the_number_of_brokers(millstream, tmp_path):
    plan = {"listen": {"1": "a:1", "2": "a:2"}, "peer": {"1": "a:3", "2": "a:4"}, "http": {}, "options": []}
    (tmp_path / "dev.json").write_text(json.dumps(plan))
    refused = millstream("dev", "cluster", "-n", 3, "--keep", "--data", tmp_path)
    assert "holds a cluster of 2 brokers, not 3; give -n 2" in refused.err
    assert "has no broker 7; it has 1, 2" in millstream("dev", "restart", 7, "--data", tmp_path).err
    (tmp_path / "cluster.json").write_text("{")
    assert "is not what 'millstream dev cluster' writes" in millstream("dev", "cluster", "--data", tmp_path).err


@pytest.mark.parametrize("words", [["drain", "0"], ["undrain", "0"], ["decommission", "7"], ["rebalance"]])
def test_a_single_broker_is_called_that(millstream, status, words):
    status["results"] = [
        {"error": "INVALID_REQUEST", "message": "broker 0 is not registered", "topic": None, "moves": 0}
    ]
    status["brokers"] = []
    outcome = millstream("cluster", *words, "--bootstrap", "127.0.0.1:1")
    assert outcome.code == 1
    assert "is a single broker" in outcome.err


@pytest.mark.parametrize(
    ("text", "protocol", "url"),
    [
        ("b-1:9644", "", "http://b-1:9644"),
        ("b-1:9644", "SSL", "https://b-1:9644"),
        ("https://b-1:9644/", "", "https://b-1:9644"),
        ("http://b-1:9644", "SASL_SSL", "http://b-1:9644"),
    ],
)
def test_a_survivor_is_asked_over_tls_if_the_command_speaks_it(monkeypatch, text, protocol, url):
    found = {} if not protocol else {"security.protocol": protocol}
    if protocol.startswith("SASL"):
        found |= {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    identity.use(lambda: found)
    assert broker_http.http_address(text) == url
    identity.use(dict)

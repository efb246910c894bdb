"""``millstream schema`` against a registry over HTTP: what is sent, what is shown, what is refused."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from registry_client import Registry, record

from millstream.cli.__main__ import main

ORDER = record("Order", ("id", "long"))
WIDER = record("Order", ("id", "long"), ("item", "string"))
FITTING = record("Order", ("id", "long"), ("item", ["null", "string"], None))


@pytest.fixture
def schema(tmp_path, monkeypatch, capsys):
    """Runs one command beside a registry: ``schema("list") -> (code, out, err)``; dictionaries become files."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer("GET")

        def do_POST(self):
            self._answer("POST")

        def _answer(self, method):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            answer = registry.call(method, self.path, body, {"accept": self.headers["Accept"]})
            self.send_response(answer.status)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("MILLSTREAM_REGISTRY", f"http://127.0.0.1:{server.server_port}")

        def run(*words):
            files = [word for word in words if isinstance(word, dict)]
            for number, content in enumerate(files):
                (tmp_path / f"{number}.avsc").write_text(json.dumps(content))
            names = iter(range(len(files)))
            code = main(
                ["schema", *(str(tmp_path / f"{next(names)}.avsc") if isinstance(w, dict) else w for w in words)]
            )
            captured = capsys.readouterr()
            return code, captured.out, captured.err

        yield run
        server.shutdown()
        thread.join()


def test_a_schema_is_registered_listed_and_shown(schema):
    assert schema("list")[2] == "there are no schemas\n"
    assert schema("register", "orders-value", ORDER) == (0, "", "orders-value: version 1, id 1\n")
    assert schema("register", "orders-value", ORDER)[2] == "orders-value: version 1, id 1\n"
    shown = json.loads(schema("register", "orders-value", FITTING, "--json")[1])
    assert shown == {"subject": "orders-value", "version": 2, "id": 2}
    (entry,) = json.loads(schema("list", "--json")[1])
    assert entry == {"subject": "orders-value", "version": 2, "id": 2, "type": "AVRO", "compatibility": "BACKWARD"}
    code, out, err = schema("show", "orders-value", "--version", "1")
    assert (code, json.loads(out)) == (0, ORDER)
    assert err == "orders-value: version 1, id 1, AVRO\n"


def test_a_schema_that_does_not_fit_is_refused_with_the_reasons(schema):
    schema("register", "orders-value", ORDER)
    assert schema("check", "orders-value", FITTING)[0] == 0
    code, _, err = schema("check", "orders-value", WIDER)
    assert code == 1
    assert "does not fit orders-value" in err and "item" in err
    code, _, err = schema("register", "orders-value", WIDER)
    assert code == 1
    assert "the registry refuses that" in err and "schema check" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "nothing"], "Subject 'nothing' not found"),
        (["register", "s", "/nowhere.avsc"], "/nowhere.avsc cannot be read"),
        (["register", "s", "/nowhere.txt"], "say --type"),
        (["register", "s", "/nowhere.avsc", "--reference", "x"], "NAME=SUBJECT:VERSION"),
        (["list", "--registry", "http://127.0.0.1:1"], "answers at http://127.0.0.1:1 (connection refused);"),
        (["list", "--registry", "127.0.0.1:1"], "no URL"),
    ],
)
def test_a_mistake_is_told_in_words(schema, words, sentence):
    code, out, err = schema(*words)
    assert code and not out
    assert sentence in err

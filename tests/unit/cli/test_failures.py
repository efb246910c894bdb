"""The sentence for an error that a broker told."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from confluent_kafka import KafkaError

from millstream.cli import interrupts
from millstream.cli.__main__ import main
from millstream.cli.broker_http import ask_http
from millstream.cli.explained import explain
from millstream.cli.failure import CommandFailed
from millstream.errors import Rejected
from millstream.tune import applying


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (KafkaError(16, "ConsumerGroupDescribe: "), "group 'g': ConsumerGroupDescribe: Not coordinator"),
        (KafkaError(16), "group 'g': Not coordinator"),
        (KafkaError(42, "Too many partitions."), "group 'g': Too many partitions"),
        (KafkaError(69), "there is no group 'g'; 'millstream group list' shows those that exist"),
    ],
)
def test_an_error_is_told_in_words_also_when_the_broker_had_none(error, sentence):
    assert str(explain(error, "group 'g'", "localhost:9092")) == sentence


@pytest.mark.parametrize(
    ("words", "code", "beginning"),
    [
        (["topic", "create", "t", "-p", "x", "--json"], 2, "invalid value"),
        (["topic", "list", "--bootstrap", "127.0.0.1:1", "--json"], 1, "no broker answers at 127.0.0.1:1"),
        (["consume", "t", "--json", "--format", "{value}"], 2, "--json and --format cannot be given together"),
        (["config", "show", "no.such.setting", "--json"], 2, ""),
    ],
)
def test_with_json_a_failure_is_one_line_of_json_on_stderr(capsys, words, code, beginning):
    assert main(words) == code
    said = capsys.readouterr()
    assert said.out == ""
    document = json.loads(said.err)
    assert said.err.count("\n") == 1
    assert document["exit_code"] == code
    assert document["error"].startswith(beginning)


class _Odd(BaseHTTPRequestHandler):
    """Answers of something that is no broker."""

    def do_GET(self):
        body, status = self.server.odd
        self.wfile.write(b"HTTP/1.1 %d X\r\nContent-Length: 90000\r\n\r\n%b" % (status, body))

    def log_message(self, *_):
        """Nothing."""


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("body", [b"", b"[1]", b"null", b"{", b"[" * 90000, b"\xff" * 90000, b" " * 89998 + b"{}"])
def test_what_is_no_answer_of_a_broker_is_told_in_words(body, status):
    with ThreadingHTTPServer(("127.0.0.1", 0), _Odd) as server:
        server.odd = body, status
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1/status"
        if body.endswith(b"{}") and status == 200:
            assert ask_http(url, 60) == {}
        else:
            with pytest.raises(CommandFailed, match=url):
                ask_http(url, 60)
        server.shutdown()
        thread.join()


def test_an_error_of_the_project_is_a_sentence(capsys, monkeypatch):
    monkeypatch.setattr(applying, "undo", lambda _: refuse("the note cannot be read"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["tune", "--undo"]) == 1
    assert capsys.readouterr().err == "error: the note cannot be read\n"


def test_an_interrupt_that_a_client_loses_is_one(capsys, monkeypatch):
    def lose(_):
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.note(2, None)
        raise SystemError("flush returned NULL without setting an exception")

    monkeypatch.setattr("millstream.cli.application.run_application", lose)
    assert main(["topic", "list"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
    monkeypatch.setattr("millstream.cli.application.run_application", lambda _: raise_fault())
    assert main(["topic", "list"]) == 1
    assert "SystemError" in capsys.readouterr().err


def raise_fault():
    raise SystemError("a fault")


def refuse(sentence):
    raise Rejected(sentence)


def test_json_of_tune_is_json(capsys, monkeypatch):
    monkeypatch.setattr(applying, "undo", lambda _: ["proc/sys/vm/swappiness"])
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["tune", "--undo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"restored": ["proc/sys/vm/swappiness"]}
    assert main(["tune", "--script", "--json"]) == 2


def test_an_error_for_people_begins_with_error(capsys):
    assert main(["topic", "list", "--bootstrap", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("error: no broker answers")


def test_more_memory_than_the_machine_has_is_refused_before_anything_is_made(capsys, tmp_path):
    assert main(["start", "--data", str(tmp_path / "data"), "--memory", "900TiB"]) == 2
    said = capsys.readouterr().err
    assert "memory.bytes: 900 TiB is more than the " in said
    assert said.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_an_extra_that_is_not_installed_is_named(millstream, monkeypatch):
    def absent(*_, **__):
        raise ModuleNotFoundError("No module named 'pyarrow.flight'", name="pyarrow.flight")

    monkeypatch.setattr("millstream.cli.config.property_facts", absent)
    outcome = millstream("config", "list")
    assert outcome.code == 1
    assert outcome.err == (
        "error: this needs the package pyarrow, which is not installed: "
        "pip install 'PATH[pipeline]', PATH being a checkout or the wheel\n"
    )

"""Whatever a client called itself, and whatever a broker answers: a terminal receives text, and JSON stays JSON."""

import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from millstream.cli.__main__ import _Complaints, main
from millstream.cli.output import emit, plain, plain_line, print_facts, print_json, print_table, remark

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31mred\rnew\x7f\u202egnp\u2028\ud800x"
ESCAPED = r"\u001b]0;owned\u0007\u001b[2J\u009b31mred\u000dnew\u007f\u202egnp\u2028\ud800x"


class Terminal(io.TextIOWrapper):
    """Standard output that says that it is a terminal."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8")

    def isatty(self):
        return True

    def written(self):
        self.flush()
        return self.buffer.getvalue()


@pytest.fixture(params=["pipe", "terminal"])
def out(request, monkeypatch):
    """What commands have written to stdout so far."""
    stream = Terminal()
    if request.param == "pipe":
        monkeypatch.setattr(stream, "isatty", lambda: False)
    monkeypatch.setenv("COLUMNS", "400")
    return stream


def is_plain(data):
    return not [code for code in data.decode() if code != "\n" and not code.isprintable()]


def test_names_are_escaped_in_every_form_of_output(out, capfd):
    with redirect_stdout(out):
        print_table(("GROUP", "#LAG"), [(HOSTILE, 1), (f"a\n{HOSTILE}", 2)])
        print_facts([("group", f"{HOSTILE}\nstate  fine")])
        emit(f"group {HOSTILE}\n")
        print_json({"group": HOSTILE})
    shown = re.sub(rb"\x1b\[[0-9;]*m", b"", out.written())  # the styles of a table's head
    assert is_plain(shown)
    assert shown.count(ESCAPED.encode()) >= 4
    assert len(shown.splitlines()) == 8 + out.isatty(), "a name makes no line of its own"
    remark(f"client {HOSTILE} is gone")
    assert ESCAPED in capfd.readouterr().err


def test_json_keeps_its_meaning(out):
    with redirect_stdout(out):
        print_json({"group": HOSTILE.replace("\ud800", "")})
    assert json.loads(out.written())["group"] == HOSTILE.replace("\ud800", "")


def test_a_record_goes_into_a_pipe_as_it_is_and_to_a_terminal_escaped(out):
    data = b"\x1b[2J\xff\tvalue\n"
    with redirect_stdout(out):
        emit(data)
    assert out.written() == (rb"\u001b[2J\xff" + b"\tvalue\n" if out.isatty() else data)


def test_text_of_any_script_stays_as_it_is():
    for text in ("größe", "名前\u3000様", "שלום", "\U0001f469\u200d\U0001f680", "a\u00a0b", "tab\tand\nline"):
        assert plain(text) == text
    assert plain_line("a\nb\tc") == r"a\nb\tc"


def test_errors_are_escaped(capfd):
    assert _Complaints(as_json=False).say(f"group {HOSTILE}: gone", 1) == 1
    assert capfd.readouterr().err == f"error: group {ESCAPED}: gone\n"
    _Complaints(as_json=True).say(HOSTILE, 1)
    assert is_plain(capfd.readouterr().err.encode())


def test_words_of_the_command_line_are_escaped(capfd):
    assert main(["topic", "describe", "orders", "--bootstrap", HOSTILE]) == 2
    said = capfd.readouterr().err
    assert is_plain(said.encode())
    assert r"[2J" in said
    assert main(["topic", "nothing\x1b[2J", "--json"]) == 2
    assert "\x1b" not in capfd.readouterr().err


def test_no_command_writes_past_the_function():
    allowed = {"output.py"}
    found = [
        f"{path.name}:{number}"
        for path in Path(sys.modules["millstream.cli"].__path__[0]).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if path.name not in allowed and re.search(r"std(out|err)\.(buffer\.)?write|click\.s?echo|\bprint\(", line)
    ]
    assert not found

"""Streams that are closed, and terminals that are not UTF-8."""

import codecs
import json
import os
import subprocess
import sys

import pytest

from millstream.cli import streams

COMMAND = f"{sys.executable} -m millstream.cli config list --json"


def run(how, **environment):
    return subprocess.run(
        ["sh", "-c", f"exec {COMMAND} {how}"], capture_output=True, env={**os.environ, **environment}, check=False
    )


def test_a_closed_output_is_an_error_in_words_and_no_fault():
    done = run(">&-")
    assert (done.returncode, json.loads(done.stderr)["error"]) == (
        1,
        "the output cannot be written: bad file descriptor",
    )


def test_a_closed_input_or_a_closed_place_for_remarks_is_none():
    assert json.loads(run("<&- 2>&-").stdout)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_json_stays_json_in_any_encoding(encoding):
    said = run("", PYTHONIOENCODING=encoding)
    assert json.loads(said.stdout.decode(encoding)) == json.loads(run("").stdout)


@pytest.mark.parametrize(
    ("text", "said"),
    [("…", "\\u2026"), ("Zürich", "Z\\u00fcrich"), ("\U0001f600", "\\ud83d\\ude00"), ("日\ud800", "\\u65e5\\ud800")],
)
def test_what_an_encoding_lacks_is_an_escape_of_json(text, said):
    codecs.register_error("t", streams._escaped)
    assert text.encode("ascii", "t").decode() == said
    assert json.loads(f'"{said}"') == text

"""The sentence for an error that a broker told."""

import json

import pytest
from confluent_kafka import KafkaError

from millstream.cli.__main__ import main
from millstream.cli.failure import explain


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

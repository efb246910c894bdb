"""Endings of commands: exit codes, one sentence, no traceback; and what ``start`` hands to the broker."""

import errno
import fcntl
import io
import os
import re
import socket
import subprocess
import sys
import types

import pytest

from millstream import __version__
from millstream.cli import output


def test_version_is_printed(millstream):
    outcome = millstream("--version")
    assert (outcome.code, outcome.out) == (0, f"millstream {__version__}\n")


def test_help_names_every_command(millstream):
    outcome = millstream("--help")
    assert outcome.code == 0
    for command in ("start", "topic", "produce", "consume", "group", "config"):
        assert f"\n  {command} " in outcome.out


@pytest.mark.parametrize(
    "words",
    [
        ("bogus",),
        ("topic", "crate", "t"),
        ("topic", "create"),
        ("topic", "create", "t", "--partitions", "many"),
        ("topic", "alter", "t"),
        ("topic", "create", "t", "--config", "retention.ms"),
        ("topic", "create", "t", "--config", "retention.ms=soon"),
        ("produce", "t", "--acks", "2"),
        ("produce", "t", "--compression", "rar"),
        ("produce", "t", "--format", "xml"),
        ("produce", "t", "--format", "json", "--key", "k"),
        ("produce", "t", "--key", "k", "--key-separator", ":"),
        ("produce", "t", "--header", "novalue"),
        ("consume", "t", "--from", "yesterday"),
        ("consume", "t", "--format", "{vaule}"),
        ("consume", "t", "--group", "g", "--partition", "0"),
        ("consume", "t", "--group", "g", "--from", "17"),
        ("group", "reset", "g", "--to", "end"),
        ("group", "reset", "g", "--to", "end", "--topic", "t", "--all-topics"),
        ("group", "reset", "g", "--to", "sometime", "--topic", "t"),
        ("config", "list", "--running", "--topics"),
        ("config", "show", "num.partition"),
        ("config", "set"),
        ("config", "set", "node.id=5"),
        ("config", "set", "--unset", "shards"),
        ("config", "set", "log.retention.ms=soon"),
        ("config", "set", "log.retention=1"),
        ("config", "set", "log.retention.ms"),
        ("config", "show", "zzzz"),
        ("consume", "t", "--count", "0"),
        ("produce", "t", "--key-separator", ""),
        ("topic", "list", "--timeout", "inf"),
        ("produce", "t", "--timeout", "1e9"),
        ("topic", "trim", "t"),
        ("topic", "trim", "t", "--before", "yesterday"),
        ("topic", "list", "--bootstrap", ""),
        ("topic", "list", "--bootstrap", "broker..example:9092"),
        ("start", "--bogus"),
        ("start", "--set", "num.partition=3"),
        ("start", "--shards", "none"),
        ("start", "--memory", "lots"),
        ("start", "--config", "/nonexistent/file"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(millstream, words):
    outcome = millstream(*words)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("topic", "create", "t"),
        ("produce", "t"),
        ("consume", "t"),
        ("consume", "t", "--group", "g"),
        ("group", "list"),
        ("config", "list", "--running"),
    ],
)
def test_no_broker_is_said_at_once_with_the_remedy(millstream, words):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    outcome = millstream(*words, "--bootstrap", address)
    assert outcome.code == 1
    assert outcome.err == (
        f"error: no broker answers at {address} (connection refused); start one with "
        f"'millstream start --listen {address}', or name another with --bootstrap HOST:PORT\n"
    )


def test_a_host_without_a_port_has_kafkas_port(millstream, monkeypatch):
    tried = []

    def refused(endpoint, timeout):
        tried.append(tuple(endpoint))
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("millstream.cli.connect.socket.create_connection", refused)
    outcome = millstream("topic", "list", "--bootstrap", "localhost,[::1]")
    assert outcome.code == 1
    assert tried == [("localhost", 9092), ("::1", 9092)]
    assert "start one with 'millstream start --listen localhost:9092', or" in outcome.err  # start takes no host alone


def test_a_value_that_is_no_number_is_called_that(millstream):
    assert "'x' is not a whole number; " in millstream("consume", "t", "--count", "x").err
    assert "'x' is not a number; " in millstream("topic", "list", "--timeout", "x").err


@pytest.mark.parametrize("words", [(), ("topic",), ("group",), ("config",), ("log",)])
def test_a_noun_alone_prints_its_help(millstream, words):
    outcome = millstream(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: {' '.join(('millstream', *words))} ")


def test_a_fault_of_ours_is_a_sentence_too(millstream, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("millstream.cli.config.property_facts", broken)
    outcome = millstream("config", "list")
    assert outcome.code == 1
    assert "unexpected ZeroDivisionError: surprise" in outcome.err


def test_an_interrupt_ends_with_130(millstream, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("millstream.cli.config.property_facts", interrupted)
    assert millstream("config", "list").code == 130


def test_start_hands_the_settings_to_the_broker(millstream, monkeypatch, tmp_path):
    received = []
    stand_in = types.ModuleType("millstream.app.broker")
    stand_in.run = lambda settings: received.append(settings) or 7
    monkeypatch.setitem(sys.modules, "millstream.app.broker", stand_in)
    file = tmp_path / "node.properties"
    file.write_text("num.partitions=3\nshards=2\n")
    words = [
        "--data",
        tmp_path,
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "SIX://[::1]:0",
        "--shards",
        1,
        "--memory",
        "512MiB",
        "--config",
        file,
    ]
    outcome = millstream(
        "start",
        *words,
        "--set",
        "node.id=5",
        "--set",
        "broker.rack=r1",
        "--set",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT",
    )
    assert outcome.code == 7
    settings = received[0]
    assert (settings.data_dir, settings.shards) == (str(tmp_path), 1)
    assert settings.listen == (("PLAINTEXT", "127.0.0.1", 0), ("SIX", "::1", 0))
    assert (settings.memory_bytes, settings.num_partitions) == (512 * 2**20, 3)
    assert (settings.node_id, settings.rack) == (5, "r1")


def test_start_help_shows_every_flag(millstream):
    outcome = millstream("start", "--help")
    assert outcome.code == 0
    for flag in ("--data", "--listen", "--shards", "--memory", "--config", "--set"):
        assert flag in outcome.out


def test_start_does_not_pay_for_tables():
    script = (
        "import sys, types\n"
        "stand_in = types.ModuleType('millstream.app.broker')\n"
        "stand_in.run = lambda settings: 0\n"
        "sys.modules['millstream.app.broker'] = stand_in\n"
        "from millstream.cli.__main__ import main\n"
        "assert main(['start']) == 0\n"
        "print(*sys.modules)\n"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"click", "rich", "msgspec", "confluent_kafka"} & {name.partition(".")[0] for name in loaded}


def test_a_command_pays_for_no_other():
    script = (
        "import sys\n"
        "from millstream.cli.__main__ import main\n"
        "assert main(['consume', 't', '--bootstrap', '127.0.0.1:1']) == 1\n"
        "print(*sys.modules)\n"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "msgspec", "pydantic", "http"} & {name.partition(".")[0] for name in loaded}
    assert "millstream.cli.topic" not in loaded


def test_help_names_each_argument_once_and_cuts_no_sentence(millstream):
    assert millstream("topic", "create", "--help").out.startswith("Usage: millstream topic create [OPTIONS] TOPIC...\n")
    for words in (("--help",), ("topic", "--help"), ("consume", "--help"), ("log", "dump", "--help")):
        shown = millstream(*words).out
        assert not re.search(r"<[a-z]|\{TOPIC|[a-z]\.\.\.$", shown, re.MULTILINE), shown


def test_a_reader_that_leaves_is_no_error():
    command = f"{sys.executable} -m millstream.cli config list | head -n 1; echo ${{PIPESTATUS[0]}}"
    outcome = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert outcome.stdout.splitlines()[-1] == "0"
    assert outcome.stderr == ""


def test_a_full_disk_behind_the_output_is_said_and_is_a_failure():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "millstream.cli", "config", "show", "wal.bytes"]
        outcome = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    assert outcome.stderr == "error: the output cannot be written: no space left on device\n"
    assert outcome.returncode == 1


def test_a_file_that_may_not_be_read_is_named(millstream, monkeypatch):
    def closed(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "/data/lock")

    monkeypatch.setattr("millstream.cli.config.property_facts", closed)
    outcome = millstream("config", "list")
    assert (outcome.code, outcome.err) == (1, "error: /data/lock: permission denied\n")


def test_every_declared_setting_is_listed(millstream):
    import json

    listed = json.loads(millstream("config", "list", "--json").out)
    names = {entry["name"] for entry in listed}
    assert {"num.partitions", "wal.bytes", "listeners"} <= names
    assert not [name for name in names if name.startswith("internal.")]
    assert "num.partitions" in millstream("config", "list").out
    assert "retention.ms" in millstream("config", "list", "--topics").out


def test_one_setting_is_shown_with_what_it_expects(millstream):
    shown = millstream("config", "show", "memory.bytes").out
    assert "a quarter of RAM, at most 2 GiB" in shown
    assert "such as 512MiB" in shown
    both = millstream("config", "show", "min.insync.replicas", "--json").out
    assert '"scope": "topic"' in both
    assert '"scope": "broker"' in both


def test_tables_for_pipes_are_plain_aligned_lines(capsys):
    output.print_table(["NAME", "#COUNT"], [("a", 5), ("long name", 12345), (None, "")])
    assert capsys.readouterr().out == "NAME       COUNT\na              5\nlong name  12345\n-              -\n"


def test_an_empty_table_says_so_beside_the_data(capsys):
    output.print_table(["NAME"], [], empty="none yet")
    assert tuple(capsys.readouterr()) == ("", "none yet\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(monkeypatch, columns, *table):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", Terminal())
    output.print_table(*table)
    return re.sub("\x1b[^m]*m", "", sys.stdout.getvalue())


def test_a_table_folds_text_and_breaks_no_number(monkeypatch):
    table = ["NAME", "#OFFSET"], [("a name that is longer than half of it", 1234567890123)]
    shown = on_a_terminal(monkeypatch, 40, *table)
    assert "1234567890123" in shown
    assert max(map(len, shown.splitlines())) <= 40
    assert len(shown.splitlines()) > 3, "the name takes several lines"


def test_a_table_too_wide_for_the_terminal_becomes_one_value_a_line(monkeypatch):
    columns = ["TOPIC", "#PARTITION", "#COMMITTED", "#END", "#LAG"]
    shown = on_a_terminal(monkeypatch, 40, columns, [("orders", 0, 17, 20, 3), ("orders", 1, None, 20, None)])
    first, second = shown.split("\n\n")
    assert first.splitlines() == ["topic      orders", "partition  0", "committed  17", "end        20", "lag        3"]
    assert "committed  -" in second
    assert "PARTITION" in on_a_terminal(monkeypatch, 80, columns, [("orders", 0, 17, 20, 3)])


def test_the_facts_of_a_setting_fit_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", Terminal())
    output.print_facts([("default", "a quarter of RAM, at most 2 GiB, or so it is"), ("doc", "w" * 60)])
    shown = sys.stdout.getvalue().splitlines()
    assert shown[0] == "default  a quarter of RAM, at most 2"
    assert shown[1] == "         GiB, or so it is"
    assert shown[2] == f"doc      {'w' * 60}", "a word that can be copied is not cut"


def test_a_number_out_of_range_is_said_without_a_formula(millstream):
    assert "0 is less than 1" in millstream("consume", "t", "--count", "0").err
    assert "3000000.0 is not between 0.1 and 3600;" in millstream("topic", "list", "--timeout", "3e6").err


def test_a_name_that_is_no_setting_gets_the_nearest_of_all_names(millstream):
    assert "did you mean num.partitions?" in millstream("config", "show", "num.partition").err
    assert "did you mean retention.ms?" in millstream("config", "show", "retention.m").err
    assert "'millstream config list'" in millstream("config", "show", "zzzz").err


def test_stop_names_what_it_cannot_stop(millstream, tmp_path):
    assert "there is no directory" in millstream("stop", "--data", tmp_path / "absent").err
    assert millstream("stop", "--data", tmp_path).err == f"no broker runs on {tmp_path}\n"
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = millstream("stop", "--data", tmp_path)
    assert outcome.code == 1
    assert "does not say which process" in outcome.err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["topc", "list"], "'millstream topic'"),
        (["topic", "lst"], "'millstream topic list'"),
        (["topics"], "'millstream topic'"),
        (["describe"], "'millstream topic describe' or 'millstream events describe' or 'millstream group describe'"),
        (["rebalance"], "'millstream cluster rebalance'"),
        (["lst"], "'millstream topic list' or 'millstream group list' or 'millstream user list'"),
    ],
)
def test_a_command_that_does_not_exist_is_answered_with_the_one_that_was_meant(millstream, words, meant):
    outcome = millstream(*words)
    assert outcome.code == 2
    assert f"; did you mean {meant}?" in outcome.err


def test_nothing_is_proposed_for_a_word_that_is_like_none(millstream):
    outcome = millstream("xyzzy")
    assert outcome.code == 2
    assert outcome.err == "error: there is no command 'xyzzy'; 'millstream --help' shows what it takes\n"


def test_an_unknown_host_is_said_with_what_to_look_at(millstream, monkeypatch):
    def resolve(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    outcome = millstream("topic", "list", "--bootstrap", "brokr-1:9092")
    assert outcome.code == 1
    assert "no address is known for the host 'brokr-1'; check its spelling" in outcome.err

"""The operator's log: its form, its levels, and a reader that does not read."""

import json
import os
import re
import threading

import pytest

from millstream.telemetry.log import Level, Log, RateLimit, _Process
from millstream.telemetry.metrics import StatsSlab


@pytest.fixture
def log():
    return Log(_Process())


def test_a_line_says_when_how_urgent_and_where(log, capfd):
    log.who("shard 1")
    log.at("orders/3 term 1").warning("replaying %d records", 5)
    line = capfd.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARN  \[shard 1 orders/3 term 1\] replaying 5 records\n", line
    )


def test_what_clients_choose_cannot_forge_a_line(log, capfd):
    log.info("group %s: gone", "a\n2026-01-01T00:00:00.000Z ERROR lies\r\x1b[2K\u2028ünï")
    err = capfd.readouterr().err
    assert err.endswith(r"group a\n2026-01-01T00:00:00.000Z ERROR lies\r\x1b[2K\u2028ünï: gone" + "\n")
    assert err.count("\n") == 1


def test_a_pipe_that_nobody_reads_stops_nobody(log):
    reader, writer = os.pipe()
    log._process.fd = writer
    lines = 65536 // 50

    def write():
        for number in range(lines):
            log.error("line %d of very many, and a traceback %s", number, "x" * (9000 if number % 100 == 0 else 10))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(120)
    stuck = thread.is_alive()
    os.set_blocking(reader, False)
    seen = os.read(reader, 1 << 20)
    thread.join(120)
    os.close(reader)
    os.close(writer)
    assert not stuck
    assert b"line 0 of very many" in seen


def test_debug_lines_appear_only_when_asked_for(log, capfd):
    log.debug("unseen")
    log.set_level(Level.DEBUG)
    log.debug("seen")
    assert "unseen" not in (err := capfd.readouterr().err)
    assert "seen" in err


def test_a_percent_sign_in_a_line_without_arguments_is_kept(log, capfd):
    log.info("100% done")
    assert capfd.readouterr().err.endswith("100% done\n")


def test_an_exception_brings_its_traceback(log, capfd):
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed")
    err = capfd.readouterr().err
    assert "ERROR it failed\n" in err
    assert "ValueError: broken" in err


def test_lines_are_counted_by_level(log, capfd):
    stats = StatsSlab(0, "shard")
    log.who("shard 0", stats)
    log.error("a")
    log.error("b")
    log.info("c")
    assert stats.counter("log_lines", level="error").value == 2
    assert stats.counter("log_lines", level="info").value == 1


def test_a_closed_stderr_stops_nothing():
    process = _Process()
    process.fd = 1_000_000
    Log(process).error("nobody hears this")


def test_a_rate_limit_lets_a_burst_through_and_then_counts_what_it_swallows():
    clock = [0.0]
    limit = RateLimit(per_minute=6, now=lambda: clock[0])
    assert [limit.allows() for _ in range(8)] == [True] * 6 + [False] * 2
    assert limit.suppressed == 2
    clock[0] = 10.1
    assert limit.allows()
    assert limit.left_out() == " (and 2 more like it)"
    assert limit.left_out() == ""
    assert not limit.allows()
    clock[0] = 1000.0
    assert [limit.allows() for _ in range(7)] == [True] * 6 + [False]


def in_room(name, what):
    """Write a line as a module of a room does."""
    return eval(what, {"__name__": f"millstream.{name}.some.module"}, {"log": in_room.log})


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def timed(clock):
    in_room.log = Log(_Process(lambda: clock[0]))
    return in_room.log


def test_a_room_has_a_level_of_its_own_until_its_time_is_over(timed, clock, capfd):
    timed.set_for("raft", Level.DEBUG, 600)
    timed.set_for("kafka", Level.WARN, 60)
    for room in ("raft", "kafka", "net"):
        in_room(room, f"log.debug('fine {room}'), log.info('usual {room}'), log.warning('bad {room}')")
    err = capfd.readouterr().err
    assert re.findall(r"(\w+ \w+)\n", err) == [
        "fine raft", "usual raft", "bad raft", "bad kafka", "usual net", "bad net",
    ]  # fmt: skip
    assert timed.levels()["raft"] == (Level.DEBUG, 600)
    assert timed.levels()["net"] == (Level.INFO, None)
    clock[0] += 60
    in_room("kafka", "log.info('again')")
    assert timed.levels()["kafka"] == (Level.INFO, None)
    clock[0] += 541
    in_room("raft", "log.debug('unseen')")
    assert re.findall(r"(\w+)\n", capfd.readouterr().err) == ["again"]


def test_root_is_for_all_rooms_without_a_level_of_their_own(timed, clock, capfd):
    timed.set_for("root", Level.ERROR, 10)
    timed.set_for("raft", Level.DEBUG, 600)
    in_room("net", "log.info('unseen')")
    in_room("raft", "log.debug('one')")
    timed.set_for("raft", None, 0)
    in_room("raft", "log.info('unseen')")
    clock[0] += 11
    in_room("net", "log.info('two')")
    assert re.findall(r"(\w+)\n", capfd.readouterr().err) == ["one", "two"]


def test_a_line_is_one_json_object_if_that_is_the_form(timed, capfd):
    timed.set_form("json")
    timed.who("shard 1")
    in_room("raft", "log.at('orders/3').error('it \"broke\"\\n%d', 5)")
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        in_room("net", "log.exception('a fault')")
    first, second = map(json.loads, capfd.readouterr().err.splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "ERROR", "process": "shard 1", "place": "orders/3", "room": "raft", "message": 'it "broke"\n5',
    }  # fmt: skip
    assert "ZeroDivisionError" in second["traceback"]
    assert second["room"] == "net"

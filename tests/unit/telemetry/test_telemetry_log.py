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
    thread.join(30)
    stuck = thread.is_alive()
    os.set_blocking(reader, False)
    seen = os.read(reader, 1 << 20)
    thread.join(30)
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

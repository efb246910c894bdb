"""``--forks N``: the suite in N processes that are forks of the one that has collected it.

To collect the suite takes half a minute of processor, nearly all of it for imports, so it is done once. The processes
ask for the next tests when they have none left::

    pytest ── fork ──► process 1: protocol of each test ── reports ──► pytest: counts, prints, hands out tests
           ── fork ──► process 2 …

Tests are handed out in groups, the long ones first. All tests on Spark are one group, because they share a session. A
module that starts processes is one, because its tests share them. The other tests fill the gaps, in fewer and fewer at
a time. A process that dies fails the test that it ran; another one takes the rest of its tests.
"""

import atexit
import itertools
import os
import signal
import traceback
import warnings
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import wait

import pytest

from millstream.testing.stem import grow

SPARK_S, PROCESS_S = 8, 2
"""Seconds that a test takes, roughly, by its marker; others take none."""
SHARES = 8
"""A process gets one of so many parts of its share in the short tests that are left."""


def pytest_addoption(parser):
    parser.getgroup("forks").addoption(
        "--forks", type=int, default=0, metavar="N", help="run the tests in N forks of this process"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    count = session.config.getoption("--forks")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None  # pytest's own loop runs the tests, or says what could not be collected
    session.config._tmp_path_factory.getbasetemp()  # before they make one each
    Forks(session).play(count)
    return True


def seconds(item):
    """A rough estimate, for the order alone."""
    if item.get_closest_marker("spark"):
        return SPARK_S
    return PROCESS_S if item.get_closest_marker("process") else 0


def in_groups(items):
    """(the groups of long tests, the longest first; the short tests)."""
    modules = [list(tests) for _, tests in itertools.groupby(items, key=lambda item: item.path)]
    spark = [item for tests in modules if _weight(tests) >= SPARK_S * len(tests) for item in tests]
    processes = [tests for tests in modules if 0 < _weight(tests) < SPARK_S * len(tests)]
    long = [*([spark] if spark else []), *sorted(processes, key=_weight, reverse=True)]
    return long, [item for tests in modules if not _weight(tests) for item in tests]


def _weight(tests):
    return sum(map(seconds, tests))


class Forked:
    """A process, as the one that collected sees it. ``given`` are the tests that it has not begun, ``running`` is the
    last one that it has.
    """

    def __init__(self, pid, line):
        self.pid, self.line = pid, line
        self.given, self.running = deque(), None


class Forks:
    """Hands out the tests of a session and hears what became of them."""

    def __init__(self, session):
        self._session, self._config = session, session.config
        long, short = in_groups(session.items)
        self._long, self._short = deque(long), deque(short)
        self._forks = {}

    def play(self, count):
        """Run every test of the session."""
        self._count, self._numbers = count, itertools.count()
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # the tests of several files are reported in turn
        try:
            for _ in range(count):
                self._fork()
            while self._forks:
                for line in wait(list(self._forks)):
                    self._hear(self._forks[line])
                    if self._session.shouldfail:
                        raise self._session.Failed(self._session.shouldfail)
        finally:
            for fork in self._forks.values():
                os.kill(fork.pid, signal.SIGKILL)
                os.waitpid(fork.pid, 0)

    def _fork(self):
        ours, theirs = Pipe()
        number = next(self._numbers)
        pid = os.fork()
        if not pid:
            ours.close()
            for line in self._forks:
                line.close()
            _run(self._session, number, theirs)
        theirs.close()
        self._forks[ours] = Forked(pid, ours)

    def _hear(self, fork):
        try:
            kind, message = fork.line.recv()
        except (EOFError, ConnectionError):
            return self._has_ended(fork)
        if kind == "next":
            fork.given.extend(group := self._group())
            fork.line.send([item.nodeid for item in group])
        elif kind == "start":
            if fork.given and fork.given[0].nodeid == message["nodeid"]:  # and not one that is run again
                fork.running = fork.given.popleft()
            self._config.hook.pytest_runtest_logstart(**message)
        elif kind == "finish":
            self._config.hook.pytest_runtest_logfinish(**message)
        elif kind == "warning":
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=message)
        else:
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=message)
            self._config.hook.pytest_runtest_logreport(report=report)
        return None

    def _group(self):
        if self._long:
            return self._long.popleft()
        part = -(-len(self._short) // (self._count * SHARES))
        return [self._short.popleft() for _ in range(part)]

    def _has_ended(self, fork):
        """It has run what it was given, or died of a test."""
        del self._forks[fork.line]
        _, status = os.waitpid(fork.pid, 0)
        if not status:
            return
        said = f"ended with {os.waitstatus_to_exitcode(status)}"
        if (lost := fork.running) is None:
            raise self._session.Interrupted(f"a process that had begun no test {said}")
        said = f"the process that ran this test {said}"
        report = pytest.TestReport(lost.nodeid, lost.location, {}, "failed", said, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        if fork.given:
            self._long.appendleft(list(fork.given))
        self._fork()


class Sender:
    """Tells the process that collected what becomes of the tests here. ``line`` is given to it when it is registered:
    it would send again what the other one knows.
    """

    def __init__(self, config):
        self._config, self.line = config, None

    def pytest_runtest_logstart(self, nodeid, location):
        self.line.send(("start", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logfinish(self, nodeid, location):
        self.line.send(("finish", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report):
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.line.send(("report", data))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        if self.line is None:
            return
        given = warning_message
        text = warnings.WarningMessage(str(given.message), given.category, given.filename, given.lineno)
        message = {"warning_message": text, "when": when, "nodeid": nodeid, "location": location}
        self.line.send(("warning", message))


class Terminal:
    """What is left of the reporter in a fork: where a test that takes too long says so, and for ``--reruns`` that it
    counts nothing.
    """

    def __init__(self, writer):
        self._tw, self.stats = writer, {}


def _run(session, number, line):
    """Run in a fork the tests that it is given, and end."""
    status = 1
    try:
        _prepare(session.config, number, line)
        tests = itertools.chain(_tests(session, line), [None])
        for item, following in itertools.pairwise(tests):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        atexit._run_exitfuncs()
        status = 0
    finally:
        if status:
            session.config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
            traceback.print_exc()
        os._exit(status)


def _prepare(config, number, line):
    """Part with what the forks must not share."""
    grow()
    plugins = config.pluginmanager
    capture = plugins.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
        capture.start_global_capturing()
    reporter = plugins.unregister(name="terminalreporter")
    plugins.register(Terminal(reporter._tw), "terminalreporter")
    plugins.register(sender := Sender(config))
    sender.line = line
    factory = config._tmp_path_factory
    factory._basetemp = factory.getbasetemp() / f"fork-{number}"
    factory._basetemp.mkdir()


def _tests(session, line):
    """Asks for more when the last one of a group is begun, so that its successor decides which fixtures end."""
    items = {item.nodeid: item for item in session.items}
    while True:
        line.send(("next", None))
        group = line.recv()
        if not group:
            return
        for nodeid in group:
            yield items[nodeid]

"""Apache Kafka's own integration tests, from the test jars that Kafka publishes, against brokers of ours.

The tests run unmodified in a JVM. Classes in ``external_cluster`` come before Kafka's on the class path and give each
test fresh broker processes with the settings of its annotations. With ``--peer kafka`` these are left out, so that the
same tests run on Kafka inside their own JVM. ``classes.txt`` lists the classes that run,
``left-out.txt`` those that do not, with the reason. A class of the jars that starts a cluster and that neither of them
names is a complaint. Those of Kafka Streams are a suite of their own, ``kafka-streams``.

- A test that needs something that only a broker's own JVM has is *aborted* with its reason, and counts as skipped.
  ``<suite>.aborted.txt`` lists each of them. The list only shrinks: an abort that it does not name is a
  complaint, so no failure can hide behind one.
- A test that fails for a decision, listed with the reason in ``<suite>.left-out.txt``, is skipped, too.
- An ERROR line of a broker, and a broker that ended without being stopped, are complaints as in every suite.
- Each class has a time limit; brokers that are left over then are killed.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from bench.peers import kafka as peer

from conformance import class_files, lists, tools
from conformance.lists import FAILED, PASSED, SKIPPED, Outcome
from conformance.suite import Context, Suite

SOURCES = Path(__file__).with_name("external_cluster")
FOLDER = f"kafka-integration-tests-{peer.KAFKA_VERSION}-4"
"""Of the class path in the cache. The last number changes with ``external_cluster/pom.xml``."""
LAUNCHER = "org.junit.platform.console.ConsoleLauncher"
CLASS_LIMIT_S = 900.0
TEST_LIMIT_S = 150.0
ABORTED = re.compile(r"TestAbortedException: ((?:inside|setting|feature|security|harness|twin): [^\n]*)")
"""An abort inside Kafka's ``waitForCondition`` is reported as a failure; its cause names the abort."""
METERS = "metric not found"
"""A test of Kafka says so when it reads meters of the broker from its own JVM's registry and finds none there."""
INSIDE_METERS = "inside: the meters of Kafka's own JVM"
STREAMS = "org.apache.kafka.streams."
TWIN = "twin: "
"""Kafka's harness runs most tests twice, with combined and with separate controllers. Here both are the same."""


def build(folder: Path) -> None:
    """The tests and their class path."""
    tools.need("mvn")
    pom = str(shutil.copy(SOURCES / "pom.xml", folder))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    tools.run(["mvn", "-q", "-B", "-f", pom, *goal], folder)


def classes(prefix: str = "") -> dict[str, bool]:
    """Class → whether it belongs to the fast part; those whose names begin with ``prefix``."""
    text = (SOURCES / "classes.txt").read_text(encoding="utf-8")
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return {words[0]: words[1:] == ["fast"] for words in lines if words and words[0].startswith(prefix)}


def left_out() -> list[tuple[str, str]]:
    """(pattern of full names, reason) of the classes that do not run."""
    lines = (SOURCES / "left-out.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("  ", 1) for line in lines if line and not line.startswith("#"))
    return [(pair[0], pair[1]) for pair in pairs]


def unlisted(starters: Collection[str]) -> list[str]:
    """Classes that start a cluster and that are neither listed nor left out."""
    patterns = left_out()
    return sorted(name for name in set(starters) - set(classes()) if not lists.reason_left_out(name, patterns))


def outcomes(report: Path) -> list[Outcome]:
    """Each test of a report of JUnit's console launcher, without twins. Names are ``Class.method(…)[n]``."""
    found: list[Outcome] = []
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name', '')}"
        state, reason = PASSED, ""
        for child in case:
            text = f"{child.get('message') or child.get('type') or ''}\n{child.text or ''}"
            if child.tag in ("failure", "error"):
                aborted = ABORTED.search(text)
                inside = INSIDE_METERS if text.startswith(METERS) else aborted and aborted[1]
                state = SKIPPED if inside else FAILED
                reason = inside or " ".join(text.split())[:300]
            elif child.tag == "skipped":
                aborted = ABORTED.search(text)
                state, reason = SKIPPED, aborted[1] if aborted else " ".join(text.split())[:200]
        if not reason.startswith(TWIN):
            found.append(Outcome(name, state, float(case.get("time", "0")), reason))
    return found


def decided(outcome: Outcome, decisions: Sequence[tuple[str, str]]) -> Outcome:
    """A test that fails for a decision is skipped, with its reason."""
    reason = lists.reason_left_out(outcome.name, decisions) if outcome.state == FAILED else ""
    return replace(outcome, state=SKIPPED, reason=f"decision: {reason}") if reason else outcome


class KafkaIntegration(Suite):
    """The suite; every test starts brokers of its own, one or several as Kafka's annotations ask."""

    name = "kafka-integration"
    about = "Apache Kafka's integration tests"

    @staticmethod
    def classes() -> dict[str, bool]:
        """Class → whether it belongs to the fast part."""
        return {name: fast for name, fast in classes().items() if not name.startswith(STREAMS)}

    def prepare(self) -> str:
        tools.need("javac")
        tools.cached(FOLDER, build)
        return peer.KAFKA_VERSION

    def names(self) -> list[str]:
        """The tests that must pass, and ``Class.*`` for each class: JUnit names its tests only while they run."""
        return [*lists.must_pass(self.name), *(f"{name.rpartition('.')[2]}.*" for name in self.classes())]

    def is_fast(self, name: str) -> bool:
        return name.partition(".")[0] in {full.rpartition(".")[2] for full, fast in self.classes().items() if fast}

    def run(self, context: Context) -> Iterator[Outcome]:
        home = context.scratch / "home"
        home.mkdir()
        libraries = tools.cached(FOLDER, build)
        sources = sorted(str(path) for path in SOURCES.glob("*.java"))
        tools.run(["javac", "-d", str(home / "classes"), "-cp", f"{libraries}/*", *sources], home)
        self._write_settings(home)
        known = None if context.peer else lists.aborted(self.name)
        decisions = [] if context.peer else lists.left_out(self.name)
        starters = class_files.starters(sorted(libraries.glob("*-test.jar")))
        context.complaints += [
            f"{name} starts a cluster and is neither listed nor left out" for name in unlisted(starters)
        ]
        chosen = {name.partition(".")[0] for name in context.chosen}
        running = [full for full in self.classes() if full.rpartition(".")[2] in chosen]
        with ThreadPoolExecutor(context.jobs) as pool:
            try:
                jobs = {pool.submit(self._run_class, context, home, full): full for full in running}
                for ended in as_completed(jobs):
                    for outcome in ended.result():
                        if starters.get(jobs[ended]) and outcome.name.endswith(")"):
                            continue  # a plain test of a class whose other tests have clusters
                        if outcome.state == SKIPPED and known is not None and outcome.name not in known:
                            context.complaints.append(f"{outcome.name} was aborted and is not listed: {outcome.reason}")
                        yield decided(outcome, decisions)
            finally:  # a run that is interrupted leaves no JVM behind
                pool.shutdown(wait=False, cancel_futures=True)
                _kill_left_over(home)

    def _write_settings(self, home: Path) -> None:
        """Names of the settings that our broker has, which the harness reads."""
        listed = tools.run([str(_program()), "config", "list", "--json"], home)
        (home / "settings.txt").write_text("".join(f"{entry['name']}\n" for entry in json.loads(listed)))

    def _run_class(self, context: Context, home: Path, full: str) -> list[Outcome]:
        """Runs a class, or those of its tests that are chosen, in a JVM of its own. A class that writes no report in
        its time has failed as a whole.
        """
        short = full.rpartition(".")[2]
        context.say(short)
        place = home / "run" / short
        place.mkdir(parents=True)
        reports, notes = place / "reports", place / "notes.txt"
        whole = f"{short}.*" in context.chosen
        methods = () if whole else sorted({_method(name) for name in context.chosen if name.startswith(f"{short}.")})
        command = self._command(context, home, full, methods)
        code = tools.run_capped(command, context.logs / f"{short}.log", CLASS_LIMIT_S * context.patience, cwd=place)
        _kill_left_over(place)
        if notes.exists():
            text = notes.read_text(encoding="utf-8")
            (context.logs / f"{short}.notes").write_text(text, encoding="utf-8")
            context.complaints += [
                line for line in text.splitlines() if "\tLOG of " in line or "\tBROKER ENDED" in line
            ]
        report = reports / "TEST-junit-jupiter.xml"
        if not report.exists():
            said = "its time was over" if code is None else f"the JVM ended with {code}"
            return [Outcome(f"{short}.*", FAILED, reason=f"no report: {said}")]
        return [outcome for outcome in outcomes(report) if whole or outcome.name in context.chosen]

    def _command(self, context: Context, home: Path, full: str, methods: Collection[str]) -> list[str]:
        libraries = tools.cached(FOLDER, build)
        class_path = f"{libraries}/*" if context.peer else f"{home / 'classes'}:{libraries}/*"
        place = home / "run" / full.rpartition(".")[2]
        scratch = place / "tmp"
        scratch.mkdir()
        return [
            peer.java(),
            "-Xmx1200m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={SOURCES / 'log4j2.properties'}",
            f"-Djava.io.tmpdir={scratch}",
            "-Djunit.jupiter.extensions.autodetection.enabled=true",
            f"-Djunit.jupiter.execution.timeout.default={int(TEST_LIMIT_S * context.patience)}s",
            f"-Dexternal.program={_program()}",
            f"-Dexternal.home={place}",
            f"-Dexternal.settings={home / 'settings.txt'}",
            "-cp",
            class_path,
            LAUNCHER,
            "execute",
            "--disable-banner",
            "--disable-ansi-colors",
            f"--reports-dir={place / 'reports'}",
            f"--select-class={full}",
            *only(methods),
        ]


class KafkaStreams(KafkaIntegration):
    """Those of Kafka Streams."""

    name = "kafka-streams"
    about = "Apache Kafka's integration tests of Streams"
    fast = False

    @staticmethod
    def classes() -> dict[str, bool]:
        return classes(STREAMS)


def only(methods: Collection[str]) -> list[str]:
    """Options of JUnit's launcher, which holds each pattern against the whole of ``package.Class#method``."""
    return [f"--include-methodname=.*#{re.escape(method)}" for method in methods]


def _method(name: str) -> str:
    """``Class.method(Type)[1]`` → ``method``."""
    return name.partition(".")[2].partition("(")[0]


def _program() -> Path:
    return Path(sys.executable).with_name("millstream")


def _kill_left_over(home: Path) -> None:
    """Kills the brokers whose data lies below ``home``: they lead sessions of their own and outlive a JVM's end."""
    mark = f"{home}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

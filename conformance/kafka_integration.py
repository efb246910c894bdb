"""Apache Kafka's own client integration tests, from the test jar that Kafka publishes, against brokers of ours.

The tests run unmodified in a JVM. Two classes in ``external_cluster`` come before Kafka's on the class path and give
each test fresh broker processes with the settings of its annotations. With ``--peer kafka`` these two are left out, so
that the same tests run on Kafka inside their own JVM.

- A test that needs something that only a broker's own JVM has is *aborted* with its reason, and counts as skipped.
  ``kafka-integration.aborted.txt`` lists each of them. The list only shrinks: an abort that it does not name is a
  complaint, so no failure can hide behind one.
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
from collections.abc import Iterator
from pathlib import Path

from bench.peers import kafka as peer

from conformance import lists, tools
from conformance.lists import FAILED, PASSED, SKIPPED, Outcome
from conformance.suite import Context, Suite

SOURCES = Path(__file__).with_name("external_cluster")
FOLDER = f"kafka-integration-tests-{peer.KAFKA_VERSION}-1"
"""Of the class path in the cache. The last number changes with ``external_cluster/pom.xml``."""
PACKAGE = "org.apache.kafka."
LAUNCHER = "org.junit.platform.console.ConsoleLauncher"
CLASS_LIMIT_S = 900.0
TEST_LIMIT_S = 150.0
ABORTED = re.compile(r"TestAbortedException: ((?:inside|setting|feature|security|harness|twin): [^\n]*)")
"""An abort inside Kafka's ``waitForCondition`` is reported as a failure; its cause names the abort."""
METERS = "metric not found"
"""A test of Kafka says so when it reads meters of the broker from its own JVM's registry and finds none there."""
INSIDE_METERS = "inside: the meters of Kafka's own JVM"
TWIN = "twin: "
"""Kafka's harness runs most tests twice, with combined and with separate controllers. Here both are the same."""


def build(folder: Path) -> None:
    """The tests and their class path."""
    tools.need("mvn")
    pom = str(shutil.copy(SOURCES / "pom.xml", folder))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    tools.run(["mvn", "-q", "-B", "-f", pom, *goal], folder)


def classes() -> dict[str, bool]:
    """Class below ``PACKAGE`` → whether it belongs to the fast part."""
    text = (SOURCES / "classes.txt").read_text(encoding="utf-8")
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return {words[0]: words[1:] == ["fast"] for words in lines if words}


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


class KafkaIntegration(Suite):
    """The suite; every test starts brokers of its own, one or several as Kafka's annotations ask."""

    name = "kafka-integration"
    about = "Apache Kafka's client integration tests"

    def prepare(self) -> str:
        tools.need("javac")
        tools.cached(FOLDER, build)
        return peer.KAFKA_VERSION

    def names(self) -> list[str]:
        """The tests that must pass, and ``Class.*`` for each class: JUnit names its tests only while they run."""
        return [*lists.must_pass(self.name), *(f"{name.rpartition('.')[2]}.*" for name in classes())]

    def is_fast(self, name: str) -> bool:
        return name.partition(".")[0] in {full.rpartition(".")[2] for full, fast in classes().items() if fast}

    def run(self, context: Context) -> Iterator[Outcome]:
        home = context.scratch / "home"
        home.mkdir()
        compiled = home / "classes"
        libraries = tools.cached(FOLDER, build)
        sources = sorted(str(path) for path in SOURCES.glob("*.java"))
        tools.run(["javac", "-d", str(compiled), "-cp", f"{libraries}/*", *sources], home)
        self._write_settings(home)
        known = None if context.peer else lists.aborted(self.name)
        chosen = {name.partition(".")[0] for name in context.chosen}
        for full in classes():
            short = full.rpartition(".")[2]
            if short not in chosen:
                continue
            context.say(short)
            for outcome in self._run_class(context, home, full):
                whole = f"{short}.*" in context.chosen
                if not whole and outcome.name not in context.chosen:
                    continue
                if outcome.state == SKIPPED and known is not None and outcome.name not in known:
                    context.complaints.append(f"{outcome.name} was aborted and is not listed: {outcome.reason}")
                yield outcome

    def _write_settings(self, home: Path) -> None:
        """Names of the settings that our broker has, which the harness reads."""
        listed = tools.run([str(_program()), "config", "list", "--json"], home)
        (home / "settings.txt").write_text("".join(f"{entry['name']}\n" for entry in json.loads(listed)))

    def _run_class(self, context: Context, home: Path, full: str) -> list[Outcome]:
        """Runs a class in a JVM of its own. A class that writes no report in its time has failed as a whole."""
        short = full.rpartition(".")[2]
        reports = home / "reports" / short
        notes = home / "notes.txt"
        notes.unlink(missing_ok=True)
        command = self._command(context, home, full, reports)
        code = tools.run_capped(command, context.logs / f"{short}.log", CLASS_LIMIT_S * context.patience, cwd=home)
        _kill_left_over(home)
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
        return outcomes(report)

    def _command(self, context: Context, home: Path, full: str, reports: Path) -> list[str]:
        libraries = tools.cached(FOLDER, build)
        class_path = f"{libraries}/*" if context.peer else f"{home / 'classes'}:{libraries}/*"
        scratch = home / "tmp"
        scratch.mkdir(exist_ok=True)
        return [
            peer.java(),
            "-Xmx1200m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
            f"-Djava.io.tmpdir={scratch}",
            "-Djunit.jupiter.extensions.autodetection.enabled=true",
            f"-Djunit.jupiter.execution.timeout.default={int(TEST_LIMIT_S * context.patience)}s",
            f"-Dexternal.program={_program()}",
            f"-Dexternal.home={home}",
            "-cp",
            class_path,
            LAUNCHER,
            "execute",
            "--disable-banner",
            "--disable-ansi-colors",
            f"--reports-dir={reports}",
            f"--select-class={PACKAGE}{full}",
        ]


def _program() -> Path:
    return Path(sys.executable).with_name("millstream")


def _kill_left_over(home: Path) -> None:
    """Kills the brokers whose data lies below ``home``: they lead sessions of their own and outlive a JVM's end."""
    mark = str(home).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

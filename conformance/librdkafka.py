"""librdkafka's own test-runner, from the sources inside the npm package of Confluent's JavaScript client.

Built once per version (two to three minutes of CPU). Every test that needs a broker is run, in processes of its own,
each with a time limit; those that use only librdkafka's mock cluster are not: they say nothing about a broker. The
table of tests is read from the suite's own ``test.c``. A number (0045) may stand for several tests that can only be run
together; a test that a broken one kept from running has failed.

A pass is more than the state PASSED in the runner's report. A test that skips itself is skipped, one whose output
speaks only of subtests that skipped themselves is, too, and so is one that came back in less time than it takes to ask
a broker anything: the runner's quick mode leaves subtests out without a word. What quick mode leaves nothing of is run
again in full. ``consumer`` runs it all with the consumer protocol of KIP-848. Scripts of a Kafka installation, which
some tests call, are generated over the jars of the peer.
"""

import concurrent.futures
import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.peers import kafka as peer

from conformance import brokers, tools
from conformance.lists import FAILED, PASSED, SKIPPED, Outcome
from conformance.suite import Context, Suite

PACKAGE = "@confluentinc/kafka-javascript"
PACKAGE_VERSION = "1.10.1"
VERSION = "2.15.1"
KAFKA_VERSION = "4.1.0"
"""Broker version that the tests assume: the last one without share groups (``librdkafka_share``)."""

LIMIT_S = 45.0
LIMITS_S = {
    "0018": 90.0,  # waits for groups to settle, again and again
    "0026": 150.0,  # waits for silence again and again
    "0030": 120.0,  # asks for committed offsets until each request has timed out, eight times
    "0033": 150.0,  # as many subscriptions by pattern as there are, each with a pause before its first assignment
    "0038": 90.0,  # a performance run
    "0045": 240.0,  # three tests, each waits for several refreshes of metadata
    "0056": 90.0,
    "0076": 120.0,  # sits out broken connections
    "0081": 240.0,  # every admin operation, each with several timeouts that it sits out
    "0089": 180.0,  # waits for max.poll.interval.ms, several times
    "0091": 120.0,
    "0098": 120.0,
    "0102": 240.0,  # waits for session timeouts of static members
    "0103": 240.0,  # some thirty kinds of transactions, several of which sit out their timeouts
    "0107": 120.0,
    "0111": 120.0,
    "0113": 240.0,  # some thirty rebalances
    "0118": 90.0,
    "0122": 120.0,
    "0132": 120.0,
    "0174": 900.0,  # thousands of records with a pause between them, seven times
}

SLOW = {"0059": 2.0}
"""Factors for the limits that a test sets itself: 0059 waits a second for its own client ten times, in ten seconds."""
ASKING_S = 0.001
"""A test that was shorter cannot have asked a broker anything: one that does nothing takes 0.01 ms, a client that asks
for metadata 3.6.
"""
HOLLOW = "every subtest skipped itself"

FAST = ("0001", "0003", "0012", "0015", "0017", "0029", "0031", "0040", "0044", "0073", "0085", "0099")

TOPICS = {"kafka-topics.sh": peer.TOPIC_COMMAND, "kafka-acls.sh": "org.apache.kafka.tools.AclCommand"}
SCRIPTS = {
    **TOPICS,
    "kafka-configs.sh": peer.CONFIG_COMMAND,
    "kafka-console-producer.sh": peer.CONSOLE_PRODUCER,
    "kafka-console-consumer.sh": peer.CONSOLE_CONSUMER,
    "kafka-consumer-groups.sh": peer.CONSUMER_GROUP_COMMAND,
}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Entry:
    """A row of the suite's table: tests of one ``number`` and ``scenario`` run in one process."""

    name: str
    sockets: bool
    scenario: str

    @property
    def number(self) -> str:
        return self.name.split("_", 1)[0]


def build(folder: Path) -> None:
    """Fetches and builds into ``folder``."""
    tools.need("gcc", "g++", "make", "bash")
    tools.run([*tools.npm(), "pack", "--silent", "--ignore-scripts", f"{PACKAGE}@{PACKAGE_VERSION}"], folder)
    archive = next(folder.glob("*.tgz"))
    tools.run(["tar", "xzf", archive.name], folder)
    sources = folder / "package" / "deps" / "librdkafka"
    for headers, package in (("zlib.h", "zlib1g-dev"), ("openssl/ssl.h", "libssl-dev")):
        if not list(Path("/usr/include").glob(headers)):
            raise tools.SuiteUnavailable(f"needs the headers of {package} (Debian: apt-get install {package})")
    headers = json_headers(folder)
    tools.run(["bash", "./configure"], sources, {"CXXFLAGS": f"-isystem {headers}"} if headers else {})
    tools.run(["nice", "make", "-j2", "libs"], sources)
    tools.run(["nice", "make", "-j2", "-C", "tests", "build"], sources)
    for part in ("src", "src-cpp", "tests"):
        shutil.move(sources / part, folder / part)
    shutil.rmtree(folder / "package")
    archive.unlink()


def json_headers(folder: Path) -> Path | None:
    """Where RapidJSON is, with which a few tests read statistics: the system's, or Debian's package, unpacked only."""
    if Path("/usr/include/rapidjson/schema.h").exists():
        return None
    try:
        tools.run(["apt-get", "download", "rapidjson-dev"], folder)
        tools.run(["dpkg", "-x", next(folder.glob("rapidjson-dev*.deb")).name, "rapidjson"], folder)
    except (tools.SuiteUnavailable, FileNotFoundError):
        return None  # the tests that want it skip themselves, and say so
    return folder / "rapidjson" / "usr" / "include"


def write_scripts(folder: Path) -> Path:
    """A ``bin`` folder as a Kafka installation has it; returns its parent."""
    scripts = folder / "bin"
    scripts.mkdir(parents=True, exist_ok=True)
    for name, main in SCRIPTS.items():
        command = " ".join(f"'{word}'" for word in peer.java_command(main, [], flags=("-XX:TieredStopAtLevel=1",)))
        path = scripts / name
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
    # Java programs of the suite are compiled and run with these.
    run_class = scripts / "kafka-run-class.sh"
    java, libraries = peer.java(), peer.jars()
    run_class.write_text(f'#!/bin/sh\nexec \'{java}\' -cp "$CLASSPATH:{libraries}/*" "$@"\n', encoding="utf-8")
    run_class.chmod(0o755)
    (folder / "libs").symlink_to(libraries)
    return folder


def table(source: str) -> list[Entry]:
    """The tests that need a broker, from the text of ``test.c``."""
    start = source.index("struct test tests[] = {")
    body = source[start : source.index("/* Manual tests */", start)]
    found: list[Entry] = []
    for row in body.split("_TEST(")[1:]:
        fields = [field.strip() for field in re.sub(r"/\*.*?\*/", "", row, flags=re.DOTALL).split(",")]
        name, flags = fields[0], fields[1]
        if "TEST_F_LOCAL" in flags or "TEST_F_MANUAL" in flags:
            continue
        scenario = re.search(r'\.scenario = "([^",]*)', row)
        found.append(Entry(name, "SOCKEM" in flags, scenario[1] if scenario else "default"))
    return found


def self_skipped(output: str) -> bool:
    """Whether every subtest that the output speaks of skipped itself."""
    plain = COLOUR.sub("", output)
    skips = re.findall(r"\[ [^\n]*: SKIP(?:PED)?\b", plain)
    passes = re.findall(r"\[ [^\n]*: PASS\b", plain)
    return bool(skips) and not passes


def reason_in(output: str, name: str) -> str:
    """Why a test failed or was skipped: what it said when it failed, its row of the summary, or else its last line."""
    plain = COLOUR.sub("", output)
    row = re.search(rf"^\|\s+{re.escape(name)}\s+\|\s+SKIPPED\s+\|[^|]*\|\s*(\S[^\n]*)", plain, re.MULTILINE)
    if row:
        return row[1].strip()
    test = rf'^### Test "{re.escape(name)}\b[^\n]* failed at ([^\n]*?) at [^\n]*###\n([^\n]*)'
    blow = re.search(test, plain, re.MULTILINE)
    if blow:
        return f"{blow[1]}: {blow[2].strip()}"[:300]
    said = [line for line in plain.splitlines() if name in line] or plain.strip().splitlines() or ["said nothing"]
    return said[-1].strip()[:300]


class Librdkafka(Suite):
    """The suite; ``consumer_protocol`` is None or ``consumer``."""

    kafka_version = KAFKA_VERSION
    modes = ("-Q", "")
    """Quick first; in full what that leaves nothing of."""
    limit_s = LIMIT_S
    """Of a test that is not in ``LIMITS_S``."""

    def __init__(self, consumer_protocol: str | None = None) -> None:
        self.name = "librdkafka-consumer" if consumer_protocol else "librdkafka"
        self.about = "librdkafka's test-runner" + (", consumer protocol of KIP-848" if consumer_protocol else "")
        self.consumer_protocol = consumer_protocol
        self.fast = consumer_protocol is None

    def prepare(self) -> str:
        tools.need("gcc", "java")
        self.folder = tools.cached(f"librdkafka-{VERSION}", build)
        self.entries = table((self.folder / "tests" / "test.c").read_text(encoding="utf-8"))
        return VERSION

    def names(self) -> list[str]:
        return [entry.name for entry in self.entries]

    def is_fast(self, name: str) -> bool:
        return name.split("_", 1)[0] in FAST

    def run(self, context: Context) -> Iterator[Outcome]:
        yield from self.run_in(context, context.broker)

    def run_in(
        self, context: Context, start: Callable[[Mapping[str, str]], AbstractContextManager[brokers.Served]]
    ) -> Iterator[Outcome]:
        """Runs the chosen tests against what ``start`` starts, with the settings that each scenario wants."""
        chosen = [entry for entry in self.entries if entry.name in context.chosen]
        kafka_path = write_scripts(context.scratch / "kafka")
        (context.scratch / "src").symlink_to(self.folder / "src")  # 0053 looks for a schema there
        for scenario in sorted({entry.scenario for entry in chosen}):
            entries = [entry for entry in chosen if entry.scenario == scenario]
            create = "false" if scenario == "noautocreate" else "true"
            with start({"auto.create.topics.enable": create}) as broker:
                yield from self._scenario(context, broker, kafka_path, entries)

    def configuration(self, context: Context, broker: brokers.Served, number: str) -> str:
        """Content of the file from which tests take their broker."""
        patience = SLOW.get(number, 1.0) * context.patience
        where = f"bootstrap.servers={broker.bootstrap}\nbroker.address.family=v4\n"
        return f"{where}test.topic.random=true\ntest.timeout.multiplier={patience}\n"

    def furnish(self, place: Path) -> None:
        """Put what tests look for beside them into the folder that they run in."""

    def _scenario(
        self, context: Context, broker: brokers.Served, kafka_path: Path, entries: list[Entry]
    ) -> Iterator[Outcome]:
        groups: dict[tuple[str, bool], list[Entry]] = {}
        for entry in entries:
            groups.setdefault((entry.number, entry.sockets), []).append(entry)
        with concurrent.futures.ThreadPoolExecutor(context.jobs) as pool:
            waiting = [
                pool.submit(self._group, context, broker, kafka_path, number, group)
                for (number, _), group in groups.items()
            ]
            try:
                for done in concurrent.futures.as_completed(waiting):
                    yield from done.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _group(
        self, context: Context, broker: brokers.Served, kafka_path: Path, number: str, group: list[Entry]
    ) -> list[Outcome]:
        broker.revive()
        found: list[Outcome] = []
        for mode in self.modes_of(number):
            context.say(group[0].name)
            found = self._process(context, broker, kafka_path, number, group, mode)
            if not any(outcome.reason == HOLLOW or "quick mode" in outcome.reason for outcome in found):
                break
        return found

    def modes_of(self, number: str) -> tuple[str, ...]:
        """Flags of the runner for a test; the next is for what the one before leaves nothing of."""
        _ = number
        return self.modes

    def _process(
        self, context: Context, broker: brokers.Served, kafka_path: Path, number: str, group: list[Entry], mode: str
    ) -> list[Outcome]:
        """One run of the test-runner."""
        place = context.scratch / f"{number}-{group[0].scenario}-{'sockem' if group[0].sockets else 'plain'}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "test.conf").write_text(self.configuration(context, broker, number), encoding="utf-8")
        self.furnish(place)
        report, log = place / "report.json", context.logs / f"{place.name}.log"
        log.unlink(missing_ok=True)
        environment = {
            "LD_LIBRARY_PATH": f"{self.folder / 'src'}:{self.folder / 'src-cpp'}",
            "TEST_KAFKA_VERSION": self.kafka_version,
            "RDKAFKA_TEST_CONF": str(place / "test.conf"),
            "TEST_REPORT": str(report),
            "TESTS": number,
            "TEST_SCENARIO": group[0].scenario,
            "KAFKA_PATH": str(kafka_path),
            "BROKERS": broker.bootstrap,
        }
        if self.consumer_protocol:
            environment["TEST_CONSUMER_GROUP_PROTOCOL"] = self.consumer_protocol
        flags = ["-p1", "-L", *([mode] if mode else []), *([] if group[0].sockets else ["-E"])]
        limit_s = LIMITS_S.get(number, self.limit_s) * context.patience
        code = tools.run_capped([str(self.folder / "tests" / "test-runner"), *flags], log, limit_s, place, environment)
        return outcomes(group, report, log.read_text(encoding="utf-8", errors="replace"), code, limit_s)


def outcomes(group: list[Entry], report: Path, output: str, code: int | None, limit_s: float) -> list[Outcome]:
    """What each test of a process came to; without a report (it was ended or died) every test has failed."""
    tests: dict[str, dict[str, object]] = {}
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        tests = json.loads(report.read_text(encoding="utf-8", errors="replace"))["tests"]
    found: list[Outcome] = []
    for entry in group:
        row = tests.get(entry.name, {})
        state, seconds = str(row.get("state", "none")), float(str(row.get("duration", 0.0)))
        if state == "PASSED" and code is not None and (code == 0 or len(group) > 1):
            hollow = seconds < ASKING_S or (len(group) == 1 and self_skipped(output))
            found.append(Outcome(entry.name, SKIPPED if hollow else PASSED, seconds, HOLLOW if hollow else ""))
        elif state == "SKIPPED":
            found.append(Outcome(entry.name, SKIPPED, seconds, reason_in(output, entry.name)))
        else:
            reason = reason_in(output, entry.name)
            if code is None:
                reason = f"not done in {limit_s:g} s: {reason}"
            elif not tests:
                reason = f"ended with {code}: {reason}"
            found.append(Outcome(entry.name, FAILED, seconds, reason))
    return found

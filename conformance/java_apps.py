"""Programs from Kafka's jars as whole applications against the broker, and Kafka Streams as the first of them.

Streams runs its own smoke test: a driver that writes, an application of two instances that filters, joins nothing,
aggregates, windows and suppresses over changelog and repartition topics, and the driver's verification of every result,
at least once here and exactly once in ``conformance.transactions``. With ``group.protocol=streams`` it runs at least
once, where ``kafka-streams-groups`` is asked about it, and exactly once while an instance and the broker are killed.
"""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

from bench.peers import kafka as peer

from conformance import tools
from conformance.checks import Bench, Check, CheckFailed, Checks
from conformance.lists import Outcome
from conformance.suite import Context

POM = Path(__file__).with_name("pom.xml")
STREAMS = "org.apache.kafka.streams.tests.StreamsSmokeTest"
STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
STREAMS_PROTOCOL = {"group.protocol": "streams"}
KILLS = 2
"""Of an instance of the application and of the broker, in turn."""
FOLDER = f"kafka-suites-{peer.KAFKA_VERSION}-2"
"""Of the class path in the cache. The last number changes with ``pom.xml``."""

WAIT_S = 60.0


def build(folder: Path) -> None:
    """Their class path."""
    tools.need("mvn")
    pom = str(shutil.copy(POM, folder))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    tools.run(["mvn", "-q", "-B", "-f", pom, *goal], folder)


def application_command(bench: Bench, main: str, *arguments: str, heap: str = "384m") -> list[str]:
    """Runs a main class; what it leaves in its temporary folder goes with the check's."""
    libraries = tools.cached(FOLDER, build)
    flags = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={bench.folder}")
    command = peer.java_command(main, list(arguments), heap, flags, "warn")
    place = command.index("-cp") + 1
    command[place] = f"{libraries}/*"
    return command


def write_properties(path: Path, properties: Mapping[str, str]) -> str:
    """Write a properties file; returns its path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
    return str(path)


@contextlib.contextmanager
def started(bench: Bench, command: Sequence[str], said: Path) -> Generator["subprocess.Popen[bytes]"]:
    """A program that runs on, its output in ``said``; ended with everything it started."""
    with open(said, "ab") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        tools.end_group(process)
        bench.note(command, said.read_bytes()[-20_000:])


def wait_for(
    what: str, holds: Callable[[], bool], process: "subprocess.Popen[bytes]", said: Path, limit_s: float
) -> None:
    """Waits until something holds; a program that ended meanwhile is an error with its last words."""
    deadline = time.monotonic() + limit_s
    while not holds():
        last = said.read_text(encoding="utf-8", errors="replace")[-300:]
        if process.poll() is not None:
            raise CheckFailed(f"ended with {process.returncode} before {what}: {last}")
        if time.monotonic() > deadline:
            raise CheckFailed(f"{what} did not happen in {limit_s:g} s: {last}")
        time.sleep(0.1)


def stop(process: "subprocess.Popen[bytes]", limit_s: float) -> None:
    """Asks a program to stop, and waits until it has."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(f"did not stop in {limit_s:g} s") from error


TOPICS = ("data", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "sws-raw", "sws-suppressed")
MORE_TOPICS = ("cnt", "avg", "tagg", "fk")


def streams_smoke_test_is_verified_by_its_driver(bench: Bench) -> None:
    smoke_test_of_streams(bench, "at_least_once")


def streams_smoke_test_is_verified_with_the_streams_protocol(bench: Bench) -> None:
    smoke_test_of_streams(bench, "at_least_once", STREAMS_PROTOCOL, _say_what_runs)


def streams_smoke_test_is_verified_with_the_streams_protocol_through_kills(bench: Bench) -> None:
    smoke_test_of_streams(bench, "exactly_once_v2", STREAMS_PROTOCOL, kills=KILLS)


def _say_what_runs(bench: Bench) -> None:
    """What Kafka's tool says of the application: one active member for each of its tasks."""
    group = ["--bootstrap-server", bench.bootstrap, "--group", "SmokeTest", "--describe"]
    listed = bench.call(peer.java_command(STREAMS_GROUPS, [*group[:2], "--list", "--state"], level="off"))
    assert ["SmokeTest", "Stable"] in [line.split() for line in listed.splitlines()], listed
    state = bench.call(peer.java_command(STREAMS_GROUPS, [*group, "--state"], level="off"))
    assert "Stable" in state, state
    members = bench.call(peer.java_command(STREAMS_GROUPS, [*group, "--members"], level="off"))
    assert members.count("ACTIVE:") == INSTANCES * THREADS, members


INSTANCES, THREADS = 2, 2


def smoke_test_of_streams(
    bench: Bench,
    guarantee: str,
    more: Mapping[str, str] | None = None,
    look: Callable[[Bench], None] | None = None,
    kills: int = 0,
) -> None:
    """The driver and two instances of the application, with this ``processing.guarantee`` and ``more`` settings.
    ``look`` is called when they run; while the driver writes, one of them and the broker are killed in turn.
    """
    created = [("--create", "--topic", topic, "--partitions", "5") for topic in (*TOPICS, *MORE_TOPICS)]
    for arguments in created:
        bench.call(peer.java_command(peer.TOPIC_COMMAND, ["--bootstrap-server", bench.bootstrap, *arguments]))
    with contextlib.ExitStack() as stack:
        instances: list[tuple[subprocess.Popen[bytes], list[str], Path]] = []
        properties = ""
        for number in range(1, INSTANCES + 1):
            state = bench.folder / f"state-{number}"
            state.mkdir()
            properties = write_properties(
                bench.folder / f"streams-{number}.properties",
                {
                    "bootstrap.servers": bench.bootstrap,
                    "state.dir": str(state),
                    "num.stream.threads": str(THREADS),
                    "processing.guarantee": guarantee,
                    "acceptable.recovery.lag": str(2**63 - 1),
                    **({"session.timeout.ms": "10000"} if more is None else more),
                },
            )
            said = bench.folder / f"streams-{number}.log"
            command = application_command(bench, STREAMS, properties, "process")
            process = stack.enter_context(started(bench, command, said))
            instances.append((process, command, said))
            running = _started_streams(said)
            wait_for("the application runs", running, process, said, WAIT_S * bench.patience)
        if look is not None:
            look(bench)
        driver = application_command(bench, STREAMS, properties, "run")
        if not kills:
            out = bench.call(driver, limit_s=300)
        else:
            out = _driven_through_kills(bench, stack, driver, instances[0], kills)
    assert "ALL-RECORDS-DELIVERED" in out, out[-500:]
    assert "SUCCESS" in out.splitlines(), out[-500:]


def _driven_through_kills(
    bench: Bench,
    stack: contextlib.ExitStack,
    driver: list[str],
    instance: "tuple[subprocess.Popen[bytes], list[str], Path]",
    kills: int,
) -> str:
    """What the driver said. While it writes, an instance of the application and the broker are killed in turn."""
    process, command, said = instance
    heard = bench.folder / "driver.log"
    limit_s = 600.0 * bench.patience
    with started(bench, driver, heard) as driving:
        for kill in range(kills):
            written = heard.stat().st_size
            wait_for("the driver writes", lambda known=written: heard.stat().st_size > known, driving, heard, limit_s)
            if kill % 2:
                bench.broker.kill()
                bench.broker.restart()
            else:
                process.kill()
                process.wait()
                process = stack.enter_context(started(bench, command, said))
        driving.wait(limit_s)
    return heard.read_text(encoding="utf-8", errors="replace")


def _started_streams(said: Path) -> Callable[[], bool]:
    return lambda: "REBALANCING -> RUNNING" in said.read_text(encoding="utf-8", errors="replace")


class JavaApps(Checks):
    """A suite of programs from the jars."""

    fast = False

    def prepare(self) -> str:
        peer.jars()
        tools.cached(FOLDER, build)
        return peer.KAFKA_VERSION


class Streams(JavaApps):
    name = "streams"
    about = "the smoke test of Kafka Streams"

    def run(self, context: Context) -> Iterator[Outcome]:
        """Each check has a broker of its own, because the smoke test names its topics itself."""
        for check in self.checks():
            if check.__name__ in context.chosen:
                with context.broker(self.settings) as broker:
                    context.say(check.__name__)
                    yield self.one(context, broker, check)

    def checks(self) -> Sequence[Check]:
        return (
            streams_smoke_test_is_verified_by_its_driver,
            streams_smoke_test_is_verified_with_the_streams_protocol,
            streams_smoke_test_is_verified_with_the_streams_protocol_through_kills,
        )

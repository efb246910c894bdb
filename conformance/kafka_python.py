"""kafka-python's integration tests, from its source distribution, in an environment of their own.

The suite gets the address of a running broker; of a cluster that of one broker, as it can't read more. One process of
pytest and one broker for all tests; each has two minutes. A suite that finds no Kafka installation errors in every
test, even where it starts none, so an empty folder stands in for one. Tests of logins and TLS start brokers themselves;
they run in a process of their own, in which `SECURED` stands in for these brokers. The distribution leaves out two of
the suite's files: the empty ``test/__init__.py``, and ``test/service.py``, which starts brokers; as none is started
here, `SERVICE` stands in for it.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from conformance import junit, tools
from conformance.lists import FAILED, SKIPPED, Outcome
from conformance.secured import secured
from conformance.suite import Context, Suite

VERSION = "3.0.12"
KAFKA_VERSION = "4.3.0"
"""Broker version that the tests assume: the newest that this version of the client knows."""
NEEDS = ("pytest==9.0.2", "pytest-mock", "pytest-timeout", "py", "lz4", "zstandard", "crc32c", "python-snappy")
TEST_LIMIT_S = 120
SUITE_LIMIT_S = 1500.0
FILES = "test/integration"
SERVICE = '''
class ExternalService:
    """A broker that somebody else started."""

    def __init__(self, host, port):
        self.host, self.port = host, port


class SpawnedService:
    """What the suite would start itself; here it must not."""

    def __init__(self, *_):
        raise RuntimeError("this run starts no brokers of its own")
'''
SECURED = '''
"""Stands in for the brokers with logins and TLS that the suite would start itself."""

import os

from kafka import KafkaAdminClient
from test.integration.fixtures import KafkaFixture


class Child:
    def dump_logs(self):
        pass


class Running(KafkaFixture):
    def start(self):
        pass

    def get_topic_names(self):
        admin = KafkaAdminClient(**self._enrich_client_params({}, client_id="names"))
        try:
            return admin.list_topics()
        finally:
            admin.close()


def instance(broker_id, transport="PLAINTEXT", sasl_mechanism=None, tmp_dir=None, **_):
    host, _, port = os.environ[f"SECURED_{transport}"].rpartition(":")
    given = {"transport": transport, "sasl_mechanism": sasl_mechanism, "partitions": 4, "external": True}
    fixture = Running(host, int(port), broker_id, **given)
    fixture.child = Child()
    fixture.ssl_dir = os.environ["SECURED_KEYS"]
    return fixture


KafkaFixture.instance = staticmethod(instance)
'''
SECURED_TESTS = (
    "test_sasl_integration::",
    "test_ssl_integration::",
    "test_admin_integration::test_create_describe_delete_acls",
)
USERS = {"alice": "alice-secret"}
"""The user of the suite's fixtures."""
SELECTION = re.compile(r"^test/integration/(\w+)\.py::(\S+)")


def build(folder: Path) -> None:
    """The unpacked sources in ``source`` and an environment in ``venv``."""
    tools.run([sys.executable, "-m", "venv", "venv"], folder)
    pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    tools.run([*pip, "install", *NEEDS], folder)
    package = f"kafka-python=={VERSION}"
    tools.run([*pip, "download", "--no-deps", "--no-binary", "kafka-python", "--dest", ".", package], folder)
    tools.run(["tar", "xzf", next(folder.glob("*.tar.gz")).name], folder)
    next(path for path in folder.glob("kafka_python-*") if path.is_dir()).rename(folder / "source")
    # Without the first, Python's own package of that name is found before this one.
    (folder / "source" / "test" / "__init__.py").touch()
    (folder / "source" / "test" / "service.py").write_text(SERVICE, encoding="utf-8")


class KafkaPython(Suite):
    """The suite of one process."""

    name = "kafka-python"
    about = "kafka-python's integration tests"

    def prepare(self) -> str:
        self.folder = tools.cached(f"kafka-python-{VERSION}", build)
        self.source = self.folder / "source"
        self.python = self.folder / "venv" / "bin" / "python"
        listed = tools.run(
            [*self._pytest(), "--collect-only", "-q", FILES],
            self.source,
            self._environment("") | {"KAFKA_URI": "kafka://x:1"},
        )
        self.ids = {
            f"{match[1]}::{match[2]}": line.strip()
            for line in listed.splitlines()
            if (match := SELECTION.match(line.strip()))
        }
        return VERSION

    def names(self) -> list[str]:
        return list(self.ids)

    def run(self, context: Context) -> Iterator[Outcome]:
        chosen = [name for name in self.ids if name in context.chosen]
        alone = [name for name in chosen if name.startswith(SECURED_TESTS)]
        others = [name for name in chosen if name not in alone]
        found: dict[str, Outcome] = {}
        if others:
            with context.broker() as broker:
                uri = {"KAFKA_URI": f"kafka://{broker.bootstrap.split(',')[0]}"}
                found |= self._played(context, "report", others, uri)
        if alone and not context.peer:
            found |= self._play_secured(context, alone)
        for name in chosen:
            missing = Outcome(name, FAILED, reason="the run ended before it")
            if name in alone and context.peer:
                missing = Outcome(name, SKIPPED, reason="the peer is started without logins and TLS")
            yield found.get(name, missing)

    def _play_secured(self, context: Context, names: list[str]) -> dict[str, Outcome]:
        """Tests of logins and TLS, against a broker of ours that has both."""
        plugin = context.scratch / "plugin"
        plugin.mkdir()
        (plugin / "secured_brokers.py").write_text(SECURED, encoding="utf-8")
        with secured(context.scratch, USERS, context.logs / "broker.log", context.complaints) as broker:
            (broker.keys / "ca-cert").write_bytes((broker.keys / "ca.pem").read_bytes())
            environment = {f"SECURED_{protocol}": address for protocol, address in broker.addresses.items()}
            environment |= {"SECURED_KEYS": str(broker.keys), "PYTHONPATH": str(plugin)}
            return self._played(context, "secured", names, environment, "-p", "secured_brokers")

    def _played(
        self, context: Context, title: str, names: list[str], environment: Mapping[str, str], *more: str
    ) -> dict[str, Outcome]:
        """Run tests in one process of pytest; the outcomes of those that ended."""
        report = context.logs / f"{title}.xml"
        report.unlink(missing_ok=True)
        limit_s = TEST_LIMIT_S * context.patience
        options = ["-v", f"--junitxml={report}", f"--timeout={limit_s:g}", "--timeout-method=signal", *more]
        seen: set[str] = set()

        def on_line(line: str) -> None:
            match = SELECTION.match(line)
            if match:
                seen.add(f"{match[1]}::{match[2]}")
                context.say(f"{len(seen)} of {len(names)} · {match[2]}")

        junit.follow(
            [*self._pytest(), *options, *(self.ids[name] for name in names)],
            self.source,
            {**self._environment(str(context.scratch)), **environment},
            context.logs / ("pytest.log" if title == "report" else f"{title}.log"),
            SUITE_LIMIT_S * context.patience,
            on_line,
        )
        return {outcome.name: outcome for outcome in junit.outcomes(report)}

    def _pytest(self) -> list[str]:
        return [str(self.python), "-m", "pytest", "-p", "no:cacheprovider", "--durations=0", "--assert=plain"]

    def _environment(self, root: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KAFKA"))}
        return {
            **kept,
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_ROOT": root or str(self.source),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

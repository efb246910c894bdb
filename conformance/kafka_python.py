"""kafka-python's integration tests, from its source distribution, in an environment of their own.

The suite gets the address of a running broker; of a cluster that of one broker, as it can't read more. One process of
pytest and one broker for all tests; each has two minutes. A suite that finds no Kafka installation errors in every
test, even where it starts none, so an empty folder stands in for one. The distribution leaves out two of the suite's
files: the empty ``test/__init__.py``, and ``test/service.py``, which starts brokers; as none is started here, `SERVICE`
stands in for it.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from conformance import junit, tools
from conformance.lists import FAILED, Outcome
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
        listed = tools.run([*self._pytest(), "--collect-only", "-q", FILES], self.source, self._environment("", "x:1"))
        self.ids = {
            f"{match[1]}::{match[2]}": line.strip()
            for line in listed.splitlines()
            if (match := SELECTION.match(line.strip()))
        }
        return VERSION

    def names(self) -> list[str]:
        return list(self.ids)

    def run(self, context: Context) -> Iterator[Outcome]:
        with context.broker() as broker:
            report = context.logs / "report.xml"
            report.unlink(missing_ok=True)
            limit_s = TEST_LIMIT_S * context.patience
            options = ["-v", f"--junitxml={report}", f"--timeout={limit_s:g}", "--timeout-method=signal"]
            chosen = [self.ids[name] for name in self.ids if name in context.chosen]
            seen: set[str] = set()

            def on_line(line: str) -> None:
                match = SELECTION.match(line)
                if match:
                    seen.add(f"{match[1]}::{match[2]}")
                    context.say(f"{len(seen)} of {len(chosen)} · {match[2]}")

            junit.follow(
                [*self._pytest(), *options, *chosen],
                self.source,
                self._environment(str(context.scratch), broker.bootstrap.split(",")[0]),
                context.logs / "pytest.log",
                SUITE_LIMIT_S * context.patience,
                on_line,
            )
        found = {outcome.name: outcome for outcome in junit.outcomes(report)}
        for name in self.ids:
            if name in context.chosen:
                yield found.get(name, Outcome(name, FAILED, reason="the run ended before it"))

    def _pytest(self) -> list[str]:
        return [str(self.python), "-m", "pytest", "-p", "no:cacheprovider", "--durations=0", "--assert=plain"]

    def _environment(self, root: str, bootstrap: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KAFKA"))}
        return {
            **kept,
            "KAFKA_URI": f"kafka://{bootstrap}",
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_ROOT": root or str(self.source),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

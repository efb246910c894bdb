"""The client matrix of ``tests/conformance/test_clients.py`` as a suite: each client through kills of the broker.

The tests are ours, the clients other people's (confluent-kafka, kafka-python, aiokafka, kcat, Kafka's console tools).
They start and kill brokers of their own.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from conformance import junit, tools
from conformance.lists import FAILED, Outcome
from conformance.suite import Context, Suite

ROOT = Path(__file__).parents[1]
FILE = "tests/conformance/test_clients.py"
LINE = re.compile(r"^tests/conformance/(\w+)\.py::(\S+)")
SUITE_LIMIT_S = 1200.0


class Clients(Suite):
    name = "clients"
    about = "Python clients, kcat and console tools through kills of the broker"

    def is_fast(self, name: str) -> bool:
        """Those with kcat; the rest of what is fast needs nothing but Python and runs in ``make test``."""
        return "kcat" in name

    def prepare(self) -> str:
        from importlib import metadata

        listed = tools.run([*_pytest(), "--collect-only", "-q", FILE], ROOT)
        self.ids = {
            f"{match[1]}::{match[2]}": line.strip()
            for line in listed.splitlines()
            if (match := LINE.match(line.strip()))
        }
        return f"confluent-kafka {metadata.version('confluent-kafka')}"

    def names(self) -> list[str]:
        return list(self.ids)

    def run(self, context: Context) -> Iterator[Outcome]:
        report = context.logs / "report.xml"
        report.unlink(missing_ok=True)
        chosen = [self.ids[name] for name in self.ids if name in context.chosen]
        peer = ["--peer", context.peer] if context.peer else ["--brokers", str(context.count)]
        limit_s = SUITE_LIMIT_S * context.patience
        options = ["-v", "-p", "no:randomly", f"--junitxml={report}", *peer]

        def on_line(line: str) -> None:
            if match := LINE.match(line):
                context.say(match[2])

        junit.follow([*_pytest(), *options, *chosen], ROOT, os.environ, context.logs / "pytest.log", limit_s, on_line)
        found = {outcome.name: outcome for outcome in junit.outcomes(report)}
        for name in self.ids:
            if name in context.chosen:
                yield found.get(name, Outcome(name, FAILED, reason="the run ended before it"))


def _pytest() -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts="]

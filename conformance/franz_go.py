"""franz-go's own tests of its client (kgo) that ask a broker, from the Go module proxy.

Compiled once per version; which tests ask a broker is read from their source, as the others pass without one. The
largest ones move records through three levels of topics while consumers come and go: of classic groups with each
balancer and of KIP-848, with and without transactions, and of share groups, which also release, reject and keep records
until their lock ends. They check that each record passed once, that none was rejected and yet passed on, and the
delivery counts. Go fetches a newer toolchain automatically if the machine's is too old.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from conformance import brokers, tools
from conformance.lists import FAILED, PASSED, SKIPPED, Outcome
from conformance.suite import Context, Suite

MODULE = "github.com/twmb/franz-go"
VERSION = "1.22.3"
TEST = re.compile(r"^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
ASKS = re.compile(r"\b(tmpTopic|tmpGroup|getSeedBrokers|newTestCl|tmpNamed|testChainETL)")
"""What a test calls that has to do with a broker."""
LIMIT_S = 120.0
LIMITS_S = {"TestShareGroupETL": 240.0, "TestGroupETL": 600.0, "TestTxnEtl": 600.0}
RECORDS = 50_000
"""Of the largest tests; half a million by default."""
RUNNER = "kgo.test"


def build(folder: Path) -> None:
    """Fetches the module and compiles its tests."""
    said = tools.run(["go", "mod", "download", "-json", f"{MODULE}@v{VERSION}"], folder)
    tools.run(["cp", "-r", "--no-preserve=mode", json.loads(said)["Dir"], "module"], folder)  # Go's copy is read-only
    tools.run(["go", "test", "-c", "-o", str(folder / RUNNER), "./pkg/kgo"], folder / "module")


def asking(source: str) -> list[str]:
    """The tests in a file of Go that ask a broker."""
    return [match[1] for match in TEST.finditer(source) if ASKS.search(match[2])]


class FranzGo(Suite):
    """The suite; its tests run one after the other."""

    name = "franz-go"
    about = "franz-go's tests of its client"
    fast = False

    def prepare(self) -> str:
        tools.need("go")
        self.folder = tools.cached(f"franz-go-{VERSION}", build)
        return VERSION

    def names(self) -> list[str]:
        files = sorted((self.folder / "module" / "pkg" / "kgo").glob("*_test.go"))
        return [name for file in files for name in asking(file.read_text(encoding="utf-8"))]

    def run(self, context: Context) -> Iterator[Outcome]:
        with context.broker({"auto.create.topics.enable": "false"}) as broker:
            for name in self.names():
                if name in context.chosen:
                    context.say(name)
                    yield self._test(context, broker, name)

    def _test(self, context: Context, broker: brokers.Served, name: str) -> Outcome:
        broker.revive()
        log = context.logs / f"{name}.log"
        log.unlink(missing_ok=True)
        environment = {
            "KGO_SEEDS": broker.bootstrap,
            "KGO_TEST_RF": str(context.count),
            "KGO_TEST_RECORDS": str(RECORDS),
        }
        limit_s = LIMITS_S.get(name, LIMIT_S) * context.patience
        command = [str(self.folder / RUNNER), "-test.v", "-test.run", f"^{name}$"]
        code = tools.run_capped(command, log, limit_s, self.folder / "module" / "pkg" / "kgo", environment)
        return outcome(name, log.read_text(encoding="utf-8", errors="replace"), code, limit_s)


def outcome(name: str, output: str, code: int | None, limit_s: float) -> Outcome:
    """What a test came to, by the line of its result; without one it has failed."""
    result = re.search(rf"^--- (PASS|FAIL|SKIP): {re.escape(name)} \(([\d.]+)s\)", output, re.MULTILINE)
    said = [line.strip() for line in output.splitlines() if "_test.go:" in line]
    seconds = float(result[2]) if result else 0.0
    if result and result[1] == "PASS" and code == 0:
        return Outcome(name, PASSED, seconds)
    reason = said[-1] if said else (output.strip().splitlines() or ["said nothing"])[-1]
    if result and result[1] == "SKIP":
        return Outcome(name, SKIPPED, seconds, reason)
    return Outcome(name, FAILED, seconds, f"not done in {limit_s:g} s" if code is None else reason)

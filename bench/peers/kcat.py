"""kcat, the command-line client on librdkafka, for the client matrix.

Taken from the search path; where it is not installed, Debian's packages of it are downloaded and unpacked (not
installed: no root needed) into ``~/.cache/millstream/kcat``, once, under a lock. Where neither works
:class:`KcatUnavailable` says how to get it.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = ("kcat", "librdkafka1", "libserdes1", "libavro23", "libyajl2", "libjansson4", "libsnappy1v5", "liblz4-1")


class KcatUnavailable(RuntimeError):
    """There is no kcat on this machine and none could be fetched."""


def kcat() -> tuple[str, dict[str, str]]:
    """Its path, and the environment variables it needs."""
    found = shutil.which("kcat")
    if found:
        return found, {}
    target = Path.home() / ".cache" / "millstream" / "kcat"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / ".kcat.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _unpack_into(target)
    libraries = ":".join(str(path) for path in sorted((target / "usr" / "lib").glob("*-linux-gnu")))
    return str(target / "usr" / "bin" / "kcat"), {"LD_LIBRARY_PATH": libraries}


def _unpack_into(target: Path) -> None:
    scratch = target.with_name(f"kcat.{os.getpid()}")
    scratch.mkdir()
    try:
        for package in PACKAGES:
            done = subprocess.run(
                ["apt-get", "download", package], cwd=scratch, capture_output=True, text=True, check=False
            )
            if done.returncode != 0 and package == "kcat":
                raise KcatUnavailable(
                    f"kcat is not installed (Debian: apt-get install kcat): {done.stderr.strip()[-300:]}"
                )
        for archive in scratch.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(archive), str(scratch / "root")], check=True)
        (scratch / "root").rename(target)
    except FileNotFoundError as error:
        raise KcatUnavailable(f"kcat is not installed, and {error.filename} is not here to fetch it") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)

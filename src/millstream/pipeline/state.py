"""The state directory of a pipeline: checkpoints, where each sink started, what runs, and how far it is.

::

    <state>/lock                    held by the process that runs the pipeline; its content is that process's id
    <state>/schemas.json            schemas of JSON values that were inferred, if any
    <state>/columns.json            columns of views whose records have schema ids, if any
    <state>/<sink>/start.json       offsets at which the sink started, with ids of topics; there before its first batch
    <state>/<sink>/checkpoint/      Spark's own; its ``metadata`` names the query
    <state>/<sink>.id               of a topic sink: tells this directory from others
    <state>/<sink>/progress.json    figures of the last batch, replaced whole
    <state>/~backfill/              the same for a backfill
    <state>/instance                names the directory of ``pipeline serve`` in consumer groups

Only the lock and the checkpoint decide anything. ``start.json`` pins the beginning, so that a first batch that is
repeated after a crash covers the same records although the topic has grown or shrunk since. ``progress.json`` is for
people and may be behind by one batch after a crash; the truth about a table is in the table.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Generator, Mapping
from typing import Any, Final

import msgspec

from millstream.errors import Rejected, Unavailable

_STOP_STEP_S: Final = 0.05

Offsets = dict[str, dict[str, int]]
"""By topic and partition, as text: the form of the source's option ``startingOffsets``."""


class _Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a sink starts, and by name the ids of the topics that the offsets are of."""

    offsets: Offsets
    topics: dict[str, str]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one sink. Counts are totals since its first batch; ``version`` is the table's, as text. ``left``
    counts the offsets not read yet of those that were there when the run started. ``ranges`` are those that backfills
    have read.
    """

    sink: str
    target: str
    query: str
    batch: int
    rows: int
    rejected: int
    bytes: int
    version: str
    updated_at: float
    batch_seconds: float
    batch_rows: int
    offsets: Mapping[str, Any]
    left: int
    ranges: Mapping[str, Mapping[str, list[tuple[int, int]]]] = {}


class PipelineState:
    """The state directory of one pipeline. Opening it changes nothing."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def backfill(self) -> "PipelineState":
        """The state directory of this pipeline's backfill; it has a lock of its own."""
        return PipelineState(os.path.join(self.directory, "~backfill"))

    def schemas(self) -> dict[str, dict[str, str]]:
        """Inferred schemas by the name of their view."""
        content = _read(os.path.join(self.directory, "schemas.json"))
        return {} if content is None else json.loads(content)

    def keep_schemas(self, schemas: Mapping[str, Mapping[str, str]]) -> None:
        """Keep inferred schemas; synced, because later runs must have the same columns."""
        _write(os.path.join(self.directory, "schemas.json"), json.dumps(schemas, indent=2).encode(), sync=True)

    def columns(self) -> dict[str, str]:
        """Columns of values with schema ids by the name of their view, each an Arrow schema as text."""
        content = _read(os.path.join(self.directory, "columns.json"))
        return {} if content is None else json.loads(content)

    def keep_columns(self, columns: Mapping[str, str]) -> None:
        """Keep the columns of views; synced, because later runs must have at least the same."""
        _write(os.path.join(self.directory, "columns.json"), json.dumps(columns, indent=2).encode(), sync=True)

    def sink(self, name: str) -> "SinkState":
        return SinkState(os.path.join(self.directory, name))

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """Hold the pipeline's lock.

        Raises:
            Unavailable: another process runs this pipeline, or the directory cannot be written.
        """
        try:
            os.makedirs(self.directory, exist_ok=True)
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unavailable(f"the state directory {self.directory} cannot be used: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unavailable(
                    f"this pipeline is running already (process {self.runner() or 'unknown'}); "
                    "'millstream pipeline stop' ends it"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def runner(self) -> int | None:
        """The process that runs this pipeline now, if one does on this machine."""
        try:
            with open(self._lock, "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read() or b"0") or None
        except (FileNotFoundError, ValueError):
            pass
        return None

    def stop(self, timeout_s: float) -> bool:
        """Ask the running process to end after the batch that it is at; False if none runs.

        Raises:
            Unavailable: it still runs when time is up; nothing was forced.
        """
        pid = self.runner()
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGTERM)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise Unavailable(f"process {pid} cannot be signalled: {error.strerror}") from error
        deadline = time.monotonic() + timeout_s
        while self.runner() == pid:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"process {pid} is still at its batch after {timeout_s:g} s; it ends when that is done"
                )
            time.sleep(_STOP_STEP_S)
        return True

    def instance(self) -> str:
        """A name of this directory that no other one has, made when it is first asked for."""
        path = os.path.join(self.directory, "instance")
        content = _read(path)
        if content is None:
            _write(path, uuid.uuid4().hex.encode(), sync=True, replace=False)
            content = _read(path) or b""
        return content.decode()

    def progress(self) -> list[Progress]:
        """What the sinks have left about themselves, by name."""
        try:
            names = sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return []
        found = [self.sink(name).progress() for name in names if name != "lock"]
        return [progress for progress in found if progress is not None]

    @property
    def _lock(self) -> str:
        return os.path.join(self.directory, "lock")


class SinkState:
    """The part of the state directory that belongs to one sink."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.checkpoint = os.path.join(directory, "checkpoint")

    def query_id(self) -> str | None:
        """The id of the query whose checkpoint this is; None before the first start.

        Raises:
            Rejected: the checkpoint is damaged.
        """
        content = _read(os.path.join(self.checkpoint, "metadata"))
        if content is None:
            return None
        try:
            return str(json.loads(content)["id"])
        except (ValueError, KeyError, TypeError):
            raise Rejected(f"the checkpoint {self.checkpoint} is damaged: its metadata name no query") from None

    def offsets(self, batch: int) -> dict[str, Any]:
        """Where a batch ends, from Spark's log, which has it before the batch runs.

        Raises:
            Rejected: the log has no such batch, or is not of the form that Spark writes.
        """
        content = _read(os.path.join(self.checkpoint, "offsets", str(batch)))
        lines = (content or b"").decode().splitlines()
        try:
            decoded: object = json.loads(lines[2])
            assert isinstance(decoded, dict)
            return decoded
        except (IndexError, ValueError, AssertionError):
            raise Rejected(f"the checkpoint {self.checkpoint} does not say where batch {batch} ends") from None

    def has_offsets(self, batch: int) -> bool:
        """Whether Spark's log says where a batch ends."""
        return os.path.exists(os.path.join(self.checkpoint, "offsets", str(batch)))

    def finished_batch(self) -> int | None:
        """The last batch that Spark holds for done."""
        try:
            names = os.listdir(os.path.join(self.checkpoint, "commits"))
        except FileNotFoundError:
            return None
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def has_batches(self) -> bool:
        """Whether Spark has planned a batch: from then on its log says where the query is, and of which topics."""
        try:
            return any(map(str.isdecimal, os.listdir(os.path.join(self.checkpoint, "offsets"))))
        except FileNotFoundError:
            return False

    def start(self) -> Offsets | None:
        """Offsets at which this sink started, by topic and partition."""
        found = self._start()
        return None if found is None else found.offsets

    def start_topics(self) -> Mapping[str, str]:
        """Ids of the topics that ``start`` is of, by name; none in a file of an earlier release."""
        found = self._start()
        return {} if found is None else found.topics

    def _start(self) -> _Start | None:
        content = _read(os.path.join(self.directory, "start.json"))
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=_Start)
        except msgspec.ValidationError:  # of an earlier release
            return _Start(json.loads(content), {})

    def pin_start(self, offsets: Offsets, topics: Mapping[str, str], *, replace: bool = False) -> Offsets:
        """Decide where this sink starts; returns the offsets that hold from now on.

        ``topics`` has the ids of the topics by name. The first decision holds, unless ``replace``: a run and a backfill
        may both start for the first time at once, and a record between two decisions would be read twice or never. The
        file is synced, because nothing else has these offsets until the first batch is done.
        """
        path = os.path.join(self.directory, "start.json")
        made = _write(path, msgspec.json.encode(_Start(offsets, dict(topics))), sync=True, replace=replace)
        held = offsets if made else self.start()
        assert held is not None, "start.json is never removed while its sink is open"
        return held

    def identity(self) -> str:
        """A random id that tells this directory from others, made on first use. It outlives ``forget``."""
        path = f"{self.directory}.id"
        _write(path, uuid.uuid4().hex.encode(), sync=True, replace=False)
        return (_read(path) or b"").decode()

    def progress(self) -> Progress | None:
        content = _read(os.path.join(self.directory, "progress.json"))
        try:
            return None if content is None else msgspec.json.decode(content, type=Progress)
        except msgspec.DecodeError:
            return None  # of another version; the next batch writes a new one

    def write_progress(self, progress: Progress) -> None:
        _write(os.path.join(self.directory, "progress.json"), msgspec.json.encode(progress), sync=False)

    def restart(self) -> None:
        """Remove what a query continues from; its figures stay."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.directory, "start.json"))

    def forget(self) -> None:
        """Remove everything, checkpoint included."""
        shutil.rmtree(self.directory, ignore_errors=True)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write(path: str, content: bytes, *, sync: bool, replace: bool = True) -> bool:
    """Write a file whole; returns False, and changes nothing, if it exists and must not be replaced."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    if replace:
        os.replace(temporary, path)
    else:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
    if sync:
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    return True

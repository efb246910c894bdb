"""The audit's files: ``DATA/audit/audit.jsonl``, one JSON object a line, and older ones beside it.

::

    shards ──batches──► reactor of the supervisor ──► queue ──► thread: write, sync each second ──► acknowledged

A thread writes, because a slow disk must not stop the supervisor. A batch is acknowledged when it is written; a shard
sends the next one then, so at most one batch a shard waits here. What is written survives a crash of the broker; what
was written in the last second may be lost with the machine. A file of ``audit.log.bytes`` is renamed to
``audit.jsonl.1``, ``.1`` to ``.2`` and so on; ``audit.log.files`` older ones are kept. The files are readable by the
broker's own user only.

Disk errors: one line a minute in the log; the batch is not acknowledged and comes again, and the shards' queues fill
up (``kafka.audit``).
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from millstream.kafka.audit import time_text
from millstream.shard.reactor import Reactor
from millstream.telemetry.log import RateLimit, log

DIRECTORY: Final = "audit"
FILE: Final = "audit.jsonl"
AUDIT: Final = "audit"
"""Name of the request that brings a batch."""
WAITING_MAX: Final = 4_096
_SYNC_S: Final = 1.0

Answer = Callable[[bool], None]


class AuditFile:
    """The files and the thread. Lifecycle: made by the supervisor after the fork, ``close`` when the broker stops."""

    def __init__(self, reactor: Reactor, data_dir: str, file_bytes: int, files: int) -> None:
        self._reactor = reactor
        self._lost = reactor.stats.counter("audit_lost_records")
        self._directory = os.path.join(data_dir, DIRECTORY)
        self._file_bytes = file_bytes
        self._files = files
        self._batches: queue.SimpleQueue[tuple[list[bytes], Answer] | None] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[tuple[Answer, bool]] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._quiet = RateLimit(per_minute=1)
        self._fd = -1
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        reactor.add_reader(self._bell, self._rung)
        self._thread.start()

    def take(self, lines: Any, answer: Answer) -> None:
        """Write lines. ``answer(True)`` follows on the reactor when they are written, ``answer(False)`` if not."""
        self._batches.put((lines, answer))

    def write(self, line: bytes) -> None:
        """Write a line of the supervisor's own, unless ``WAITING_MAX`` batches wait; for any thread."""
        if self._batches.qsize() < WAITING_MAX:
            self._batches.put(([line], _nothing))
        else:
            self._lost.inc()

    def close(self) -> None:
        """Write what was taken, sync, and end the thread."""
        self._batches.put(None)
        self._thread.join()
        self._reactor.remove_reader(self._bell)
        os.close(self._bell)

    # The thread

    def _run(self) -> None:
        due: float | None = None
        while True:
            wait = None if due is None else max(0.0, due - time.monotonic())
            try:
                batch = self._batches.get(timeout=wait)
            except queue.Empty:
                self._sync()
                due = None
                continue
            if batch is None:
                self._sync()
                if self._fd >= 0:
                    os.close(self._fd)
                return
            lines, answer = batch
            self._written.put((answer, self._write(lines)))
            os.eventfd_write(self._bell, 1)
            due = due or time.monotonic() + _SYNC_S

    def _write(self, lines: list[bytes]) -> bool:
        try:
            if self._fd < 0:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                path = os.path.join(self._directory, FILE)
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            data = b"".join(line + b"\n" for line in lines)
            size = os.fstat(self._fd).st_size
            written = os.write(self._fd, data)
            if written < len(data):
                os.ftruncate(self._fd, size)  # the batch comes again, whole
                raise OSError("the disk is full")
            if size + written >= self._file_bytes:
                self._rotate()
        except OSError as error:
            self._complain(error)
            return False
        return True

    def _rotate(self) -> None:
        self._sync()
        os.close(self._fd)
        self._fd = -1
        path = os.path.join(self._directory, FILE)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}.{self._files}") if self._files else os.unlink(path)
        for number in range(self._files - 1, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}.{number}" if number else path, f"{path}.{number + 1}")

    def _sync(self) -> None:
        if self._fd >= 0:
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._complain(error)

    def _complain(self, error: OSError) -> None:
        if self._quiet.allows():
            log.error("the audit in %s cannot be written: %s%s", self._directory, error, self._quiet.left_out())

    # The reactor

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        with contextlib.suppress(queue.Empty):
            while True:
                answer, done = self._written.get_nowait()
                answer(done)


def _nothing(_: bool) -> None:
    """No caller waits for a line of the supervisor's own."""


def record_of_http(audit: AuditFile, principal: str, host: str, what: str, status: int) -> None:
    """Record a change over HTTP: method, path and status, never the body."""
    facts = {"time": time_text(), "kind": "change", "principal": principal, "host": host}
    audit.write(msgspec.json.encode(facts | {"api": "HTTP", "what": [what], "status": status}))


def record_of_reading(audit: AuditFile, principal: str, host: str, topic: str) -> None:
    """Record that the console showed records of a topic."""
    facts = {"time": time_text(), "kind": "read", "principal": principal, "host": host}
    audit.write(msgspec.json.encode(facts | {"api": "console", "what": [topic]}))

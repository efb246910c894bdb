"""Measures what a broker does on this machine: syncs of its log, cold reads, loopback, checksums, the clock.

Everything is measured in several rounds, one measure after the other in each, so that a minute in which the disk or the
host is busy with others touches all measures alike; the spread over the rounds is kept.

The log's way is measured: a file that is filled with zeros, one ``pwritev`` and one ``fdatasync`` a time, through the
page cache and past it. Files are unlinked before they are written, so that a crash or Ctrl-C leaves nothing. **Bad
input.** A disk with too little room is refused before the first write. A file system without direct I/O has no figures
for it. **Crash of a child.** The run fails with its reason; children end with their parent.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import socket
import statistics
import struct
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import crc32c
import msgspec

from millstream.errors import Rejected
from millstream.tune.machine_file import VERSION, Figure, Machine, proposals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.config.settings import Settings

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
ROUNDS: Final = 4
_LOG_BYTES: Final = 32 * _MIB
_COLD_BYTES: Final = 128 * _MIB
_READ_BYTES: Final = 64 * _KIB
_SIZES: Final = (4 * _KIB, 16 * _KIB, 64 * _KIB, 256 * _KIB, _MIB)
_DEPTHS: Final = (1, 2, 4, 8)
_MESSAGE: Final = bytes(1024)
_SHARE: Final = struct.Struct("d")


class Measure(msgspec.Struct, frozen=True):
    """A measure: ``sample`` runs for about so many seconds and returns one value per try, in ``unit``."""

    name: str
    unit: str
    sample: Callable[[float], list[float]]


def bench(settings: Settings, seconds: float, progress: Callable[[str], None]) -> Machine:
    """Measure for about ``seconds`` and say what is proposed. ``progress`` is called before each measure.

    Raises:
        Rejected: the disk of ``data.dir`` has too little room.
        OSError: it cannot be written.
    """
    os.makedirs(settings.data_dir, mode=0o700, exist_ok=True)
    room = os.statvfs(settings.data_dir)
    needed = 2 * (_LOG_BYTES + _COLD_BYTES)
    if room.f_bavail * room.f_frsize < needed + settings.storage_reserve_bytes:
        raise Rejected(f"{settings.data_dir} has too little room: {needed // _MIB} MiB beside storage.reserve.bytes")
    stolen = _stolen()
    started = time.monotonic()
    with Files(settings.data_dir) as files:
        measures = list(_measures(files))
        samples: dict[str, list[list[float]]] = {one.name: [] for one in measures}
        left = max(0.2, seconds - (time.monotonic() - started))
        each = left / (ROUNDS * len(measures))
        for _ in range(ROUNDS):
            for one in measures:
                progress(one.name)
                samples[one.name].append(one.sample(each))
    figures = [_figure(one, samples[one.name]) for one in measures]
    rounds = [{name: statistics.median(kept[i]) for name, kept in samples.items()} for i in range(ROUNDS)]
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    took = time.monotonic() - started
    return Machine(
        VERSION, at, round(took, 1), ROUNDS, _stolen_percent(stolen, _stolen()), figures, proposals(rounds, settings)
    )


class Files:
    """The files of a run, without names: nothing is left of them, however the run ends."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.buffer = mmap.mmap(-1, _MIB)
        self.buffer[:] = os.urandom(4 * _KIB) * (_MIB // (4 * _KIB))

    def __enter__(self) -> Self:
        self._kept = ExitStack()
        self.log, self.cold, self.segment = self._file(), self._file(), self._file()
        self._fill(self.log, _LOG_BYTES)
        self._fill(self.cold, _COLD_BYTES)
        self.direct_log = self._direct(self.log)
        self.direct_cold = self._direct(self.cold)
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self.direct_log, self.direct_cold):
            if fd is not None:
                os.close(fd)
        self._kept.close()

    def _file(self) -> int:
        with tempfile.TemporaryFile(dir=self._directory, buffering=0) as file:
            fd = os.dup(file.fileno())
        self._kept.callback(os.close, fd)
        return fd

    def _fill(self, fd: int, size_bytes: int) -> None:
        zeros = bytes(_MIB)
        for at in range(0, size_bytes, _MIB):
            os.pwrite(fd, zeros, at)
        os.fsync(fd)

    def _direct(self, fd: int) -> int | None:
        """Another descriptor of the file, past the page cache; None where the file system has no direct I/O."""
        try:
            direct = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise
        return direct


def _measures(files: Files) -> Iterator[Measure]:
    for way, fd in (("buffered", files.log), ("direct", files.direct_log)):
        for size in _SIZES if fd is not None else ():
            assert fd is not None
            yield Measure(f"sync {way} {_named(size)}", "µs", _syncs(files, fd, size))
    log = files.log if files.direct_log is None else files.direct_log
    yield Measure("sync 4 KiB beside segments", "µs", _beside_segments(files, _syncs(files, log, 4 * _KIB)))
    if files.direct_cold is not None:
        for depth in _DEPTHS:
            yield Measure(f"cold read 64 KiB, {depth} at once", "µs", _reads(files.direct_cold, depth))
    yield Measure("loopback 1 KiB there and back", "µs", _loopback)
    yield Measure("CRC-32C", "GB/s", _rate(crc32c.crc32c))
    seal = _aes()
    if seal is not None:
        yield Measure("AES-256-GCM", "GB/s", _rate(seal))
    yield Measure("clock read", "ns", _clock)
    yield Measure("cores", "cores", _cores)


def _named(size: int) -> str:
    return f"{size // _KIB} KiB" if size < _MIB else f"{size // _MIB} MiB"


def _syncs(files: Files, fd: int, size: int) -> Callable[[float], list[float]]:
    """Write ``size`` bytes and sync, at one place of the file after the other."""
    data = memoryview(files.buffer)[:size]
    places = _LOG_BYTES // size

    def sample(seconds: float) -> list[float]:
        found: list[float] = []
        end = time.perf_counter() + seconds
        while not found or time.perf_counter() < end:
            started = time.perf_counter()
            os.pwritev(fd, [data], len(found) % places * size)
            os.fdatasync(fd)
            found.append((time.perf_counter() - started) * 1e6)
        return found

    return sample


def _beside_segments(files: Files, syncs: Callable[[float], list[float]]) -> Callable[[float], list[float]]:
    """The same while another file is written without sync, as segments are."""

    def sample(seconds: float) -> list[float]:
        stop = threading.Event()

        def write() -> None:
            at = 0
            while not stop.wait(0.005):
                os.pwritev(files.segment, [memoryview(files.buffer)], at % _LOG_BYTES)
                at += _MIB

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            try:
                found = syncs(seconds)
            finally:
                stop.set()
            writing.result()
        return found

    return sample


def _reads(fd: int, depth: int) -> Callable[[float], list[float]]:
    """Reads at places of which no two are neighbours, ``depth`` at once."""
    count = _COLD_BYTES // _READ_BYTES

    def sample(seconds: float) -> list[float]:
        end = time.perf_counter() + seconds

        def read(reader: int) -> list[float]:
            found: list[float] = []
            buffer = mmap.mmap(-1, _READ_BYTES)
            place = reader * 7
            while not found or time.perf_counter() < end:
                place = (place + 619) % count  # a prime that does not divide the count: every place comes once
                started = time.perf_counter()
                os.preadv(fd, [memoryview(buffer)], place * _READ_BYTES)
                found.append((time.perf_counter() - started) * 1e6)
            return found

        with ThreadPoolExecutor(depth) as pool:
            return [value for part in pool.map(read, range(depth)) for value in part]

    return sample


def _loopback(seconds: float) -> list[float]:
    """A message to another process and back, through a TCP connection of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pid = _child(lambda: _echo(server.getsockname()))
        try:
            server.settimeout(10)
            connection, _ = server.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                found: list[float] = []
                end = time.perf_counter() + seconds
                while not found or time.perf_counter() < end:
                    started = time.perf_counter()
                    connection.sendall(_MESSAGE)
                    _receive(connection)
                    found.append((time.perf_counter() - started) * 1e6)
        finally:
            _ended(pid)
    return found


def _echo(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _receive(connection):
            connection.sendall(_MESSAGE)


def _receive(connection: socket.socket) -> bool:
    missing = len(_MESSAGE)
    while missing:
        got = len(connection.recv(missing))
        if not got:
            return False
        missing -= got
    return True


def _rate(work: Callable[[bytes], object]) -> Callable[[float], list[float]]:
    """Bytes a second of one core, by the core's time."""
    data = bytes(256 * _KIB)

    def sample(seconds: float) -> list[float]:
        found: list[float] = []
        end = time.perf_counter() + seconds
        while not found or time.perf_counter() < end:
            started = time.thread_time_ns()
            for _ in range(8):
                work(data)
            found.append(8 * len(data) / max(1, time.thread_time_ns() - started))
        return found

    return sample


def _aes() -> Callable[[bytes], object] | None:
    """What encrypts as TLS does; None without the extra that has it."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return None
    cipher = AESGCM(bytes(32))
    return lambda data: cipher.encrypt(bytes(12), data, None)


def _clock(seconds: float) -> list[float]:
    found: list[float] = []
    end = time.perf_counter() + seconds
    read = time.perf_counter_ns
    while not found or time.perf_counter() < end:
        started = read()
        for _ in range(1000):
            read()
        found.append((read() - started) / 1000)
    return found


def _cores(seconds: float) -> list[float]:
    """How many whole cores the machine gives to one busy process on each."""
    readable, writable = os.pipe()
    children = [_child(partial(_busy, core, seconds, writable)) for core in sorted(os.sched_getaffinity(0))]
    os.close(writable)
    try:
        parts = [os.read(readable, _SHARE.size) for _ in children]
    finally:
        for pid in children:
            _ended(pid)
        os.close(readable)
    if not all(parts):
        raise OSError(errno.ECHILD, "a process that measures a core has ended")
    return [sum(_SHARE.unpack(part)[0] for part in parts)]


def _busy(core: int, seconds: float, writable: int) -> None:
    os.sched_setaffinity(0, {core})
    started, used = time.perf_counter(), time.thread_time()
    while time.perf_counter() - started < seconds:
        pass
    os.write(writable, _SHARE.pack((time.thread_time() - used) / (time.perf_counter() - started)))


def _child(work: Callable[[], None]) -> int:
    """Fork a child that does ``work``; returns its pid. Its parent ends it."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # no measure takes that long: the parent died
        if os.getppid() == parent:
            work()
        code = 0
    finally:
        os._exit(code)


def _ended(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _figure(measure: Measure, rounds: list[list[float]]) -> Figure:
    medians = [statistics.median(one) for one in rounds]
    every = sorted(value for one in rounds for value in one)
    p99 = every[min(len(every) - 1, len(every) * 99 // 100)]
    return Figure(
        measure.name,
        measure.unit,
        round(statistics.median(medians), 2),
        round(min(medians), 2),
        round(max(medians), 2),
        round(p99, 2),
    )


def _stolen() -> tuple[int, int]:
    """Stolen and whole time of all cores so far, in ticks."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return (ticks[7] if len(ticks) > 7 else 0), sum(ticks)


def _stolen_percent(before: tuple[int, int], after: tuple[int, int]) -> float:
    return round(100 * (after[0] - before[0]) / max(1, after[1] - before[1]), 1)

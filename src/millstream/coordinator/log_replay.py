"""Reads a partition of the broker's own from its start to its end, in slices, while the shard does other work.

The keeper of the partition's state gives a function for one batch, which yields between slices of its work. A batch
that does not decode ends the reading with the offset from which it was read. An error that passes is tried again.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from millstream.errors import Corruption, MillstreamError, Retriable
from millstream.model.quantities import Offset
from millstream.telemetry.log import log
from millstream.wire.errors import BatchError
from millstream.wire.records import BatchHeader, iter_batches, parse_header

if TYPE_CHECKING:
    from millstream.shard.reactor import Reactor

_READ_BYTES: Final = 256 << 10
_SHARE: Final = 0.5
_RETRY_US: Final = 100_000


class ReadableLog(Protocol):
    """The part of ``partition.append.internal.InternalLog`` that is used here."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def read(self, offset: Offset, max_bytes: int, done: Callable[[list[bytes] | MillstreamError], None]) -> None: ...


Steps = Generator[None, None, None]


class LogReplay:
    """One reading.

    Lifecycle: built, ``start``, and over when ``done`` or ``failed`` was called, or after ``stop``.
    """

    def __init__(
        self,
        partition: ReadableLog,
        reactor: "Reactor",
        each: Callable[[BatchHeader, memoryview], Steps],
        finish: Callable[[], Steps],
        done: Callable[[], None],
        failed: Callable[[int, MillstreamError], None],
    ) -> None:
        """``each`` gets every batch in order, ``finish`` is run after the last one; either may raise ``Corruption`` or
        ``BatchError``. ``failed`` gets an offset at or before what could not be read, and why.
        """
        self._partition = partition
        self._reactor = reactor
        self._each = each
        self._finish = finish
        self._done = done
        self._failed = failed
        self._over = False

    def start(self) -> None:
        """Read; ``done`` may be called before this returns."""
        self._read(Offset(self._partition.log_start_offset), first=True)

    def stop(self) -> None:
        """Call no callback from now on."""
        self._over = True

    def _read(self, offset: Offset, *, first: bool = False) -> None:
        if self._over:
            return
        if offset >= self._partition.high_watermark:
            if first:
                self._over = True
                self._done()
            else:
                self._background(self._finish(), offset, self._finished)
            return

        def read(result: list[bytes] | MillstreamError) -> None:
            if self._over:
                return
            if isinstance(result, Retriable):
                self._reactor.call_later(_RETRY_US, lambda: self._read(offset))
            elif isinstance(result, MillstreamError):
                self._fail(offset, result)
            else:
                self._take(offset, result)

        self._partition.read(offset, _READ_BYTES, read)

    def _take(self, offset: int, chunks: Sequence[bytes]) -> None:
        """Go through what was read at ``offset``, then continue reading."""
        next_offset = offset

        def take() -> Steps:
            nonlocal next_offset
            for chunk in chunks:
                for batch in iter_batches(chunk):
                    header = parse_header(batch)
                    yield from self._each(header, batch)
                    next_offset = header.next_offset
                    yield

        def taken() -> None:
            if next_offset == offset:
                self._fail(offset, Corruption("there is no whole batch where one must be"))
            else:
                self._read(Offset(next_offset))

        self._background(take(), offset, taken)

    def _background(self, work: Steps, offset: int, done: Callable[[], None]) -> None:
        def guarded() -> Steps:
            try:
                for _ in work:
                    if self._over:
                        return
                    yield
            except (Corruption, BatchError) as error:
                self._fail(offset, error)
            except Exception as error:  # noqa: BLE001 - the boundary: what cannot be read ends this partition's state
                self._broke(offset, error)

        def finished() -> None:
            if self._over:
                return
            try:
                done()
            except Exception as error:  # noqa: BLE001 - the boundary
                self._broke(offset, error)

        self._reactor.background("loading", guarded(), _SHARE, finished)

    def _broke(self, offset: int, error: Exception) -> None:
        """A record that no check has found, or a bug: the traceback is in the log, once."""
        log.exception("the replay of a log has met what no replay meets")
        self._fail(offset, Corruption(f"{type(error).__name__}: {error}"))

    def _finished(self) -> None:
        self._over = True
        self._done()

    def _fail(self, offset: int, error: MillstreamError) -> None:
        self._over = True
        self._failed(offset, error)

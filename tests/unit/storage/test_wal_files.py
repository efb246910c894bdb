"""A new file of the write-ahead log is made ahead of the need, at leisure, until the need is near."""

from pathlib import Path

import pytest
from storage_support import FAULTS

from millstream.format.wal import FILE_HEADER_BYTES
from millstream.storage import throttle
from millstream.storage.disk import SystemDisk
from millstream.storage.messages.commands import Command, HurryFile, Prepared, PrepareFile
from millstream.storage.processes.worker import Worker
from millstream.storage.throttle import Throttle
from millstream.storage.wal.files import WalFiles

FILE_BYTES = 1 << 20
FIRST, SECOND = (PrepareFile(number, f"/wal/0000000{number}.wal", FILE_BYTES) for number in (0, 1))


@pytest.fixture
def sent() -> list[Command]:
    """What the worker was told."""
    return []


@pytest.fixture
def files(sent: list[Command]) -> WalFiles:
    return WalFiles("/wal", FILE_BYTES, 3, next_generation=0, files=[], send=sent.append)


@pytest.fixture
def busy(files: WalFiles, sent: list[Command]) -> WalFiles:
    """The first file is current, the second on its way."""
    files.prepare_now()
    files.ready(0)
    assert files.take(1)
    sent.clear()
    files.advance(FILE_BYTES // 2 - FILE_HEADER_BYTES)
    assert not sent
    return files


def test_the_first_file_is_waited_for_and_the_next_is_not(files: WalFiles, sent: list[Command]) -> None:
    assert files.prepare_now()
    assert sent == [FIRST, HurryFile(0)]
    files.ready(0)
    assert files.take(1)
    assert sent[2:] == [SECOND]


def test_past_the_middle_of_a_file_the_next_is_hurried_once(busy: WalFiles, sent: list[Command]) -> None:
    busy.advance(1)
    busy.advance(1)
    assert sent == [HurryFile(1)]


def test_a_frame_that_waits_for_a_file_hurries_it_once(busy: WalFiles, sent: list[Command]) -> None:
    assert not busy.take(2)
    assert busy.prepare_now()
    assert busy.prepare_now()
    assert sent == [HurryFile(1)]


def test_a_file_that_is_there_is_not_hurried(busy: WalFiles, sent: list[Command]) -> None:
    busy.ready(1)
    busy.advance(1)
    busy.hurry()
    assert not busy.prepare_now()
    assert not sent


def test_after_a_refusal_the_file_is_asked_for_and_hurried_anew(busy: WalFiles, sent: list[Command]) -> None:
    busy.hurry()
    busy.refused()
    busy.hurry()
    assert not busy.prepare_now()
    busy.try_again()
    busy.hurry()
    assert sent == [HurryFile(1), SECOND, HurryFile(1)]


@pytest.mark.parametrize(("hurried", "rests"), [(None, 4), (6, 4), (7, 0)])
def test_a_file_is_filled_with_rests_unless_somebody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: int | None, rests: int
) -> None:
    monkeypatch.setattr(throttle, "_PIECE_NS", 0)
    worker = Worker(SystemDisk(), str(tmp_path), memoryview(b""), None, FAULTS)
    rested: list[float] = []
    worker.new_wal_files.throttle = Throttle(rested.append)
    if hurried is not None:
        worker.carry_out(HurryFile(hurried))
    path = tmp_path / "00000007.wal"
    assert worker.carry_out(PrepareFile(7, str(path), FILE_BYTES)) == Prepared(7, 0)
    assert path.read_bytes() == bytes(FILE_BYTES)
    assert len(rested) == rests
    assert not worker.new_wal_files.throttle.is_throttled

"""Reads the files of one write-ahead log as a crash left them, for recovery and for ``verify``.

One whole file is read at a time, so the memory needed is that of one file. ``format.wal_scan`` interprets the bytes; it
raises nothing for damaged ones. Functions here raise OSError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.format.names import parse_wal_name, wal_name
from millstream.format.wal import FILE_HEADER_BYTES
from millstream.format.wal_scan import Scan, doubtful_headers, parse_file_header, scan
from millstream.model.quantities import ShardId
from millstream.storage.disk import read_at

if TYPE_CHECKING:
    from millstream.storage.disk import Disk


def wal_numbers(disk: Disk, directory: str) -> list[int]:
    """Numbers of the log files in ``directory``, ascending."""
    return sorted(number for name in disk.list(directory) if (number := parse_wal_name(name)) is not None)


def read_wal_file(disk: Disk, directory: str, number: int) -> bytearray:
    """Read a whole log file."""
    file = disk.open(f"{directory}/{wal_name(number)}")
    try:
        return read_at(file, 0, file.size())
    finally:
        file.close()


def read_wal_piece(disk: Disk, directory: str, number: int, position: int, size: int) -> bytes:
    """Read ``size`` bytes of a file from ``position`` on; fewer if the file ends before."""
    file = disk.open(f"{directory}/{wal_name(number)}")
    try:
        return bytes(read_at(file, position, min(size, file.size() - position)))
    finally:
        file.close()


def scan_wal_files(disk: Disk, directory: str, shard: ShardId, numbers: list[int], from_sequence: int) -> list[Scan]:
    """Scan log files for frames with ``from_sequence`` or later. One ``Scan`` per file, in the order of ``numbers``."""
    headers = [parse_file_header(read_wal_piece(disk, directory, number, 0, FILE_HEADER_BYTES)) for number in numbers]
    return [
        scan(memoryview(read_wal_file(disk, directory, number)), from_sequence, doubtful=doubtful)
        for number, doubtful in zip(numbers, doubtful_headers(headers, shard), strict=True)
    ]

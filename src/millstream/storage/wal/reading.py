"""Reading the files of one write-ahead log as a crash left them: for recovery, and for the check of a data directory.

Whole files are read one after the other, so that memory is one file's. What they hold is judged by `format.wal_scan`,
which raises for nothing; an OSError is the caller's.
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
    """Numbers of the files that are there, rising."""
    return sorted(number for name in disk.list(directory) if (number := parse_wal_name(name)) is not None)


def read_wal_file(disk: Disk, directory: str, number: int) -> bytearray:
    """The content of a file."""
    file = disk.open(f"{directory}/{wal_name(number)}")
    try:
        return read_at(file, 0, file.size())
    finally:
        file.close()


def read_wal_piece(disk: Disk, directory: str, number: int, position: int, size: int) -> bytes:
    """`size` bytes of a file from `position` on, as far as there are so many."""
    file = disk.open(f"{directory}/{wal_name(number)}")
    try:
        return bytes(read_at(file, position, min(size, file.size() - position)))
    finally:
        file.close()


def scan_wal_files(disk: Disk, directory: str, shard: ShardId, numbers: list[int], from_sequence: int) -> list[Scan]:
    """What each of these files holds."""
    headers = [parse_file_header(read_wal_piece(disk, directory, number, 0, FILE_HEADER_BYTES)) for number in numbers]
    return [
        scan(memoryview(read_wal_file(disk, directory, number)), from_sequence, doubtful=doubtful)
        for number, doubtful in zip(numbers, doubtful_headers(headers, shard), strict=True)
    ]

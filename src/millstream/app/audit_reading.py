"""Reads the audit's files for people: the newest records first, some at a time.

::

    audit.jsonl ◄── newest        a page: records that fit, newest first
    audit.jsonl.1                 next_before: the time of the oldest of them, from which the next page continues
    audit.jsonl.2

A page has ``limit`` records, and all others with the time of the last one, so that the next page misses none. At most
``SCAN_BYTES_MAX`` bytes of older records are searched for it; a page that ends there says how far it came. A line that
is no record, such as one that is being written, is passed over. If a file is renamed in between, a record may be shown
twice.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any, Final

from millstream.app.audit_file import DIRECTORY, FILE

SCAN_BYTES_MAX: Final = 32 << 20
_BLOCK_BYTES: Final = 256 << 10
_FIRST: Final = b'{"time":"'


def read_audit(data_dir: str, files: int, limit: int, before: str, word: str) -> dict[str, Any]:
    """Records older than the time ``before`` (empty: all) in which ``word`` stands, as ``/v1/audit`` has them."""
    found: list[dict[str, Any]] = []
    wanted, scanned, last = word.lower().encode(), 0, ""
    for line in _lines(os.path.join(data_dir, DIRECTORY), files):
        at = _time(line)
        if not at or (before and at >= before):
            continue
        if (len(found) >= limit or scanned >= SCAN_BYTES_MAX) and at != last:
            return {"records": found, "next_before": last}
        scanned, last = scanned + len(line), at
        if wanted in line.lower():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return {"records": found, "next_before": ""}


def _time(line: bytes) -> str:
    """The time of a record, which comes first; empty if the line is no record."""
    if not line.startswith(_FIRST):
        return ""
    return line[len(_FIRST) :].partition(b'"')[0].decode(errors="replace")


def _lines(directory: str, files: int) -> Iterator[bytes]:
    """The lines of all files, the newest first."""
    for number in range(files + 1):
        path = os.path.join(directory, f"{FILE}.{number}" if number else FILE)
        try:
            with open(path, "rb") as file:
                yield from _backwards(file.fileno())
        except FileNotFoundError:
            continue


def _backwards(fd: int) -> Iterator[bytes]:
    """The lines of a file from its end on."""
    at, rest = os.fstat(fd).st_size, b""
    while at > 0:
        size = min(_BLOCK_BYTES, at)
        at -= size
        first, *others = (os.pread(fd, size, at) + rest).split(b"\n")
        yield from (line for line in reversed(others) if line)
        rest = first
    if rest:
        yield rest

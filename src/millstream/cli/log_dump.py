"""The content of a file of a data directory, as text or as JSON lines. The name of the file determines its kind.

A truncated or foreign file is shown up to the first invalid byte; one line says where it is and what was expected. The
exit code is 0 all the same: ``millstream log verify`` judges.
"""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.cli.failure import CommandFailed
from millstream.cli.output import emit
from millstream.errors import Corruption
from millstream.format.epochs import decode_log_state
from millstream.format.index import scan_index
from millstream.format.names import (
    CLEANED_SUFFIX,
    EPOCHS_FILE,
    INDEX_SUFFIX,
    PRODUCERS_SUFFIX,
    QUARANTINED_SUFFIX,
    SEGMENT_SUFFIX,
    STATE_COPY_FILE,
    STATE_FILE,
    parse_offset,
    parse_segment,
    parse_wal_name,
)
from millstream.format.producers import decode_producers
from millstream.format.segment import WalkEnd
from millstream.format.wal import Kind, decode_wal_state
from millstream.format.wal_scan import scan
from millstream.model.quantities import Offset
from millstream.storage.disk import SystemDisk, read_file
from millstream.storage.segments.index import whole_batches_from
from millstream.wire.compression import Codec
from millstream.wire.errors import BatchError
from millstream.wire.records import batch_crc_ok, iter_records, parse_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.storage.disk import File

_SMALL_FILES = {EPOCHS_FILE: "epochs", STATE_FILE: "state", STATE_COPY_FILE: "state"}

_SAID = {"crc_matches"}  # to people, too, in either case
_NOTHING: Mapping[str, Any] = {}


class Dump:
    """Shows files one after the other; the limit counts over all of them."""

    def __init__(self, *, start: int, limit: int | None, records: bool, as_json: bool) -> None:
        self._disk = SystemDisk()
        self._start = start
        self._left = -1 if limit is None else limit
        self._records = records
        self._as_json = as_json

    def show(self, path: str) -> None:
        """Show one file; raises CommandFailed if its name says nothing about it."""
        if not self._left:
            return
        name = os.path.basename(path)
        if name.endswith((SEGMENT_SUFFIX, CLEANED_SUFFIX, QUARANTINED_SUFFIX)):
            self._segment(path)
        elif name.endswith(INDEX_SUFFIX):
            self._index(path, name)
        elif parse_wal_name(name) is not None:
            self._wal(path)
        elif name in _SMALL_FILES or name.endswith(PRODUCERS_SUFFIX):
            self._small(path, name)
        else:
            raise CommandFailed(
                f"{path} is no file of a log; segments end in {SEGMENT_SUFFIX}, indexes in {INDEX_SUFFIX}, "
                f"write-ahead logs in .wal, others are called {', '.join(_SMALL_FILES)} or end in {PRODUCERS_SUFFIX}"
            )

    def _line(self, kind: str, facts: Mapping[str, Any]) -> None:
        if self._as_json:
            emit(msgspec.json.encode({"kind": kind, **facts}).decode() + "\n")
            return
        indent = "  " if kind in ("record", "entry") else ""
        emit(indent + kind + "".join(f" {name}={_plain(value)}" for name, value in facts.items()) + "\n")

    # -- segments --------------------------------------------------------------------------------------------------

    def _segment(self, path: str) -> None:
        self._line("segment", {"file": path, "bytes": self._disk.size(path)})
        file = self._disk.open(path)
        try:
            self._batches(file)
        except WalkEnd as end:
            self._line("end", {"position": end.position, "reason": end.reason})
        finally:
            file.close()

    def _batches(self, file: File) -> None:
        """Raises WalkEnd where something else than a batch stands."""
        for batch, view in whole_batches_from(file, 0, file.size()):
            if not self._left:
                return
            if batch.last_offset >= self._start:
                self._batch(batch.position, view)
                self._left -= 1

    def _batch(self, position: int, view: memoryview, about: Mapping[str, Any] = _NOTHING) -> None:
        """One batch; ``about`` is said of it and of its records, too. Raises BatchError if it has no header."""
        header = parse_header(view)
        whole = batch_crc_ok(view)
        facts: dict[str, Any] = {
            **about,
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "position": position,
            "bytes": header.size,
            "records": header.record_count,
            "codec": _codec(header.codec),
            "leader_epoch": header.leader_epoch,
            "first_timestamp": header.base_timestamp,
            "max_timestamp": header.max_timestamp,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "transactional": header.is_transactional,
            "control": header.is_control,
            "crc_matches": whole,
        }
        if not self._as_json:  # what is as it mostly is need not be said to people
            facts["first_timestamp"] = _time(facts["first_timestamp"])
            facts["max_timestamp"] = _time(facts["max_timestamp"])
            facts = {
                name: value for name, value in facts.items() if (value is not False and value != -1) or name in _SAID
            }
        self._line("batch", facts)
        if self._records:
            self._records_of(view, about)

    def _records_of(self, view: memoryview, about: Mapping[str, Any]) -> None:
        try:
            for record in iter_records(view):
                facts: dict[str, Any] = {
                    **about,
                    "offset": record.offset,
                    "timestamp": record.timestamp if self._as_json else _time(record.timestamp),
                    "key": _text(record.key),
                    "value": _text(record.value),
                }
                if record.headers:
                    facts["headers"] = {name: _text(value) for name, value in record.headers}
                self._line("record", facts)
        except BatchError as error:
            self._line("end", {"reason": f"its records cannot be read: {error}"})

    # -- other files -----------------------------------------------------------------------------------------------

    def _index(self, path: str, name: str) -> None:
        found = parse_segment(name.removesuffix(INDEX_SUFFIX) + SEGMENT_SUFFIX)
        data = read_file(self._disk, path)
        index = scan_index(data, Offset(-1 if found is None else found[0]))
        self._line("index", {"file": path, "bytes": len(data), "verified_bytes": index.valid_bytes})
        for offset, position, timestamp in zip(index.offsets, index.positions, index.timestamps, strict=True):
            if not self._left:
                return
            if offset >= self._start:
                self._line("entry", {"offset": offset, "position": position, "max_timestamp_before": timestamp})
                self._left -= 1
        if index.summary is not None:
            self._line("summary", msgspec.structs.asdict(index.summary))

    def _wal(self, path: str) -> None:
        view = memoryview(read_file(self._disk, path))
        found = scan(view)
        header = found.header
        self._line("wal", {"file": path, **({} if header is None else header._asdict())})
        for frame in found.frames:
            if not self._left:
                return
            self._left -= 1
            facts = {
                "sequence": frame.sequence,
                "position": frame.position,
                "bytes": frame.end - frame.position,
                "durable_sequence": frame.durable_sequence,
                "needed_sequence": frame.needed_sequence,
                "mended": frame.mended,
            }
            self._line("frame", facts)
            for place, (record, position) in enumerate(frame.records()):
                kind = Kind(record.kind).name.lower() if record.kind in set(Kind) else str(record.kind)
                entry = {
                    "record": kind,
                    **record._asdict(),
                    "position": position,
                    "crc_matches": place not in frame.bad,
                }
                del entry["kind"]
                self._line("entry", entry)
                if self._records and record.kind == Kind.BATCH:
                    self._logged_batch(record.group, position, view[position : position + record.size])
        for position, end in found.gaps:
            self._line("gap", {"position": position, "end": end})
        if found.torn:
            self._line("end", {"reason": "after the last frame stand pieces of another one"})

    def _logged_batch(self, group: int, position: int, view: memoryview) -> None:
        """What an entry of a frame says is a batch; where it is damaged, the bytes may be anything."""
        try:
            self._batch(position, view, {"group": group})
        except BatchError as error:
            self._line("end", {"position": position, "reason": f"the batch cannot be read: {error}"})

    def _small(self, path: str, name: str) -> None:
        data = read_file(self._disk, path)
        try:
            if name == EPOCHS_FILE:
                facts = msgspec.structs.asdict(decode_log_state(data))
                del facts["unused"]
            elif name in (STATE_FILE, STATE_COPY_FILE):
                facts = msgspec.structs.asdict(decode_wal_state(data))
                facts["logs"] = f"{len(facts['logs'])} bytes"
            else:
                offset = parse_offset(name, PRODUCERS_SUFFIX)
                facts = {
                    "offset": offset,
                    "bytes": len(decode_producers(Offset(-1 if offset is None else offset), data)),
                }
        except Corruption as error:
            facts = {"reason": error.message}
            self._line("end", {"file": path, **facts})
            return
        self._line(_SMALL_FILES.get(name, "producers"), {"file": path, **facts})


def _codec(number: int) -> str:
    return Codec(number).name.lower() if number in set(Codec) else str(number)


def _text(data: bytes | None) -> str | None:
    """Text if it is some, else base64 with a mark."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"


def _time(timestamp: int) -> str | int:
    """A timestamp as people read it; any other number stays as it is."""
    if not 0 <= timestamp < 253402300800000:
        return timestamp
    return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return (
            msgspec.json.encode(value).decode() if not value or any(c.isspace() or c == '"' for c in value) else value
        )
    return "null" if value is None else str(value)

"""One life of a simulated broker. Each call is one step that a crash may follow.

An error of the store leaves the step to be repeated. A refusal of the controller or of the log ends this life: the
broker is fenced and must not acknowledge anything more.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from millstream.core.shared import Backlog, BacklogLimits, Commit, Uploads
from millstream.errors import Corruption
from millstream.format.shared_object import BlockBytes, EncodedObject, encode_object
from millstream.model.quantities import Offset, TimestampMs
from millstream.model.replication import Term
from millstream.model.shared import SharedRange
from millstream.tiers import shared_objects
from sim.shared.logs import Entry

if TYPE_CHECKING:
    from millstream.core.shared import Catalogue, Upload
    from millstream.core.shared.catalogue import Writer
    from millstream.model.shared import ObjectId, SharedPartition
    from millstream.objects import ObjectStore
    from sim.shared.logs import Values, Wal

RECORD: Final = struct.Struct("<QQ")
"""Offset and value."""

_LIMITS: Final = BacklogLimits(bytes_max=1200, upload_bytes=200, upload_age_ms=3_000, alone_bytes=150)


def block_of(partition: SharedPartition, base: int, values: Values) -> BlockBytes:
    """A block with these records."""
    data = b"".join(RECORD.pack(base + at, value) for at, value in enumerate(values))
    return BlockBytes(partition, Offset(base), Offset(base + len(values)), TimestampMs(0), data)


class Led:
    """A partition that a broker leads."""

    def __init__(self, leader_epoch: Term, base_offset: int) -> None:
        self.leader_epoch = leader_epoch
        self.base_offset = base_offset
        """Offset of the first value in memory."""
        self.values: list[int] = []
        """Of what was appended in this life and not committed."""

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.values)

    def slice(self, base: int, end: int) -> Values:
        return tuple(self.values[base - self.base_offset : end - self.base_offset])


class Broker:
    """One life. ``is_down`` after its end."""

    def __init__(self, writer: Writer, wal: Wal, store: ObjectStore, catalogue: Catalogue) -> None:
        self.writer = writer
        self.is_down = False
        self.led: dict[SharedPartition, Led] = {}
        self.uploads = Uploads()
        self.backlog = Backlog(_LIMITS)
        self._wal = wal
        self._store = store
        self._catalogue = catalogue
        self._encoded: dict[ObjectId, EncodedObject] = {}
        self._commits: dict[ObjectId, Commit] = {}

    # -- partitions ----------------------------------------------------------------------------------------------------

    def lead(self, partition: SharedPartition, entries: list[Entry], now_ms: TimestampMs) -> None:
        """Lead, and take over what the logs before have beyond the committed end."""
        lead = self._catalogue.take_lead(partition, self.writer)
        led = Led(lead.leader_epoch, lead.end_offset)
        values: dict[int, int] = {}
        for entry in sorted(entries, key=lambda one: one.leader_epoch):
            values |= {entry.base_offset + at: one for at, one in enumerate(entry.values)}
        run: list[int] = []
        while lead.end_offset + len(run) in values:
            run.append(values[lead.end_offset + len(run)])
        if run:
            self._append(partition, led, tuple(run), now_ms)
        self.led[partition] = led

    def produce(self, partition: SharedPartition, values: Values, now_ms: TimestampMs) -> int | None:
        """The base offset, once the records are acknowledged; None if the producer must wait."""
        led = self.led[partition]
        if not self.backlog.admits(len(values) * RECORD.size):
            return None
        return self._append(partition, led, values, now_ms)

    def _append(self, partition: SharedPartition, led: Led, values: Values, now_ms: TimestampMs) -> int:
        base = led.end_offset
        self._wal.append(Entry(*partition, led.leader_epoch, base, values))
        led.values += values
        self.backlog.append(partition, Offset(base), Offset(led.end_offset), len(values) * RECORD.size, now_ms)
        return base

    def resign(self, partition: SharedPartition) -> None:
        """Give the partition away; refused while anything of it is not committed."""
        self._catalogue.resign(partition, self.writer, Offset(self.led[partition].end_offset))
        self.backlog.leave(partition)
        del self.led[partition]

    # -- uploads -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Pack the backlog and get numbers."""
        packs = self.backlog.take()
        for object_id, pack in zip(self._catalogue.prepare(self.writer, len(packs)), packs, strict=True):
            blocks = [
                block_of(one.partition, one.base_offset, self.led[one.partition].slice(one.base_offset, one.end_offset))
                for one in pack.parts
            ]
            self._encoded[object_id] = encode_object(object_id, blocks)
            self.uploads.begin(object_id, pack)

    def advance(self, upload: Upload) -> None:
        """Write the object, or verify it."""
        encoded = self._encoded[upload.object_id]
        if not upload.stored:
            shared_objects.store_object(self._store, encoded)
            upload.stored = True
            return
        try:
            shared_objects.verify_object(self._store, encoded)
        except Corruption:
            upload.stored = False
            shared_objects.discard_object(self._store, encoded)
            return
        upload.verified = True

    def commit_of(self, upload: Upload) -> Commit:
        """The command that makes the object visible: the same one however often it is sent."""
        known = self._commits.get(upload.object_id)
        if known is not None:
            return known
        ranges = [
            SharedRange(one.partition, self.led[one.partition].leader_epoch, one.base_offset, one.end_offset)
            for one in upload.pack.parts
        ]
        made = Commit(self.writer, upload.object_id, self._encoded[upload.object_id].size_bytes, tuple(ranges))
        self._commits[upload.object_id] = made
        return made

    def committed(self, upload: Upload) -> None:
        """The controller has answered."""
        self.uploads.committed(upload)
        self.backlog.committed(upload.pack)
        del self._encoded[upload.object_id], self._commits[upload.object_id]

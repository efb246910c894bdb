"""What the archive process does for the log in the store: entries, what leaves it, and what is restored from it.

Entries come on a lane of their own, one after the other, so a slow store delays one entry and nothing else. A request
that the store does not answer fails after some seconds, and the shard sends the same entry again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from millstream.format.archive import topic_key
from millstream.format.wal_entry import EntryPart, encode_entry
from millstream.objects import ObjectKey
from millstream.tiers.messages import AppendEntry, CleanLogs, Done, EndLives, Restore, Restored, TrimEntries
from millstream.tiers.object_wal import ObjectWal, remove_entries, wal_folder
from millstream.tiers.restoring import StoreView, restore
from millstream.tiers.wal_lives import end_lives

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from millstream.model.quantities import ShardId
    from millstream.model.shared import Writer
    from millstream.objects import ObjectStore
    from millstream.storage.disk import Disk
    from millstream.tiers.messages import Reply


_UNKNOWN_S: Final = 1.0


class LogWorker:
    """The log of one shard. `handlers` are called on the lanes of the archive process: `AppendEntry` on one thread, the
    others on another.
    """

    def __init__(
        self,
        entries: ObjectStore,
        changes: ObjectStore,
        disk: Disk,
        arena: memoryview,
        writer: Writer,
        shard: ShardId,
    ) -> None:
        """``entries`` and ``changes`` are the same store, with different patience."""
        self._wal = ObjectWal(entries, writer, shard)
        self._folder = wal_folder(writer, shard)
        self._changes = changes
        self._view = StoreView(changes)
        self._disk = disk
        self._arena = arena
        self._unknown: UUID | None = None
        self._unknown_until_s = 0.0
        self.handlers: dict[type[Any], Callable[[Any], Reply]] = {
            AppendEntry: self._append,
            TrimEntries: self._trim,
            Restore: self._restore,
            CleanLogs: self._clean,
            EndLives: self._end_lives,
        }

    def _append(self, command: AppendEntry) -> Reply:
        assert command.number == self._wal.next_number, "entries come in the order of their numbers"
        parts: list[EntryPart] = []
        batches: list[bytes] = []
        for one in command.parts:
            spans = iter(one.spans)
            data = b"".join(self._arena[start:end] for start, end in zip(spans, spans, strict=True))
            batches.append(data)
            part = EntryPart(one.partition, one.base_offset, one.end_offset, one.start_offset, len(data), crc32c(data))
            parts.append(part)
        self._wal.append(encode_entry(parts, batches))
        return Done(command.id)

    def _trim(self, command: TrimEntries) -> Reply:
        remove_entries(self._changes, self._folder, range(command.number, command.end))
        return Done(command.id)

    def _restore(self, command: Restore) -> Reply:
        """A topic that the store does not describe was never written to. Its partitions are opened one after the other,
        so what the store said of the topic counts for a moment.
        """
        owner, now_s = command.owner, time.monotonic()
        if not command.voters and self._unknown == owner.topic_id and now_s < self._unknown_until_s:
            return Restored(command.id, 0)
        if not command.voters and self._changes.head(ObjectKey(topic_key(owner))) is None:
            self._unknown, self._unknown_until_s = owner.topic_id, now_s + _UNKNOWN_S
            return Restored(command.id, 0)
        now_ms = time.time_ns() // 1_000_000
        restored = restore(self._view, self._disk, owner, command.directory, now_ms, command.voters, command.asked_ns)
        return Restored(command.id, 0 if restored is None else restored.records)

    def _clean(self, command: CleanLogs) -> Reply:
        self._view.remove_covered()
        return Done(command.id)

    def _end_lives(self, command: EndLives) -> Reply:
        end_lives(self._changes, command.node)
        return Done(command.id)

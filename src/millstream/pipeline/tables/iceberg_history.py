"""What a writer's records in an Iceberg table say of the table's history.

A record is a property of the table and in the summary of its snapshot (``iceberg`` says why). The property outlives a
roll-back, so a record stands only if its snapshot is the present one or an ancestor of it. Owners expire snapshots,
also after a roll-back: then earlier metadata files of the table say what its history was.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.tables.table import CommitRecord

_OWNER: Final = "millstream.owner"
_RECORD: Final = "millstream.record"
_PICKED: Final = "source-snapshot-id"


def property_of(owner: str) -> str:
    """The property of the table that has a writer's record."""
    return f"millstream.{owner}"


def summary_of(record: CommitRecord) -> dict[str, str]:
    """What the summary of a record's snapshot has."""
    return {_OWNER: record.owner, _RECORD: msgspec.json.encode(record).decode()}


def guard_of(table: Any, owner: str) -> CommitRecord | None:
    """The record of a writer's last commit or claim.

    Raises:
        Rejected: it is damaged.
    """
    text = table.properties.get(property_of(owner))
    if text is None:  # its owner may have removed the property
        return _newest_record(_history(table), table, owner)
    try:
        return msgspec.json.decode(text, type=CommitRecord)
    except msgspec.MsgspecError as error:
        raise Rejected(
            f"the property {property_of(owner)} of the table is damaged ({error}); remove it: the table's snapshots "
            "have the record, too"
        ) from None


def standing_of(table: Any, found: CommitRecord | None) -> CommitRecord | None:
    """The newest record of a writer that the table's history holds; ``found`` is what ``guard_of`` gives."""
    if found is None or not found.at:
        return found
    if found.table != str(table.metadata.table_uuid):
        return None
    return found if _stands(table, found.at) else _newest_record(_ancestors(table), table, found.owner)


def place_of(snapshot: Any) -> str:
    """A snapshot's place in the history: its id and its sequence number."""
    return f"{snapshot.snapshot_id}:{snapshot.sequence_number or 0}"


def _history(table: Any, head: int | None = None) -> Iterator[Any]:
    """A snapshot, the present one by default, and its ancestors, as far as they are not expired."""
    snapshot = table.current_snapshot() if head is None else table.snapshot_by_id(head)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def _ancestors(table: Any) -> Iterator[Any]:
    """The present snapshot and its ancestors, also those that are expired, as far as metadata files of earlier versions
    of the table tell. Some writers remove the parent of a snapshot when they expire it.
    """
    from pyiceberg.serializers import FromInputFile

    wanted = table.metadata.current_snapshot_id
    known = {one.snapshot_id: one for one in table.snapshots()}
    earlier = reversed(table.metadata.metadata_log)
    while wanted is not None:
        found = known.get(wanted)
        while found is None or (found.parent_snapshot_id is None and found.sequence_number != 1):
            entry = next(earlier, None)
            if entry is None:
                break
            with contextlib.suppress(OSError, ValueError):  # removed by upkeep, or of another version
                for one in FromInputFile.table_metadata(table.io.new_input(entry.metadata_file)).snapshots:
                    if one.snapshot_id not in known or one.parent_snapshot_id is not None:
                        known[one.snapshot_id] = one
            found = known.get(wanted)
        if found is None:
            return
        yield found
        wanted = found.parent_snapshot_id


def kept_snapshots(table: Any, now_ms: float, age_ms: float) -> Iterator[int]:
    """The snapshots that stay: what tags and branches name, and of each branch as many and as young ones as its owner
    says, or else the table's.
    """
    count = int(table.properties.get("history.expire.min-snapshots-to-keep", 1))
    for ref in table.metadata.refs.values():
        yield ref.snapshot_id
        if ref.snapshot_ref_type != "branch":
            continue
        least, oldest_ms = ref.min_snapshots_to_keep or count, now_ms - max(age_ms, ref.max_snapshot_age_ms or 0)
        for number, one in enumerate(_history(table, ref.snapshot_id)):
            if number >= least and one.timestamp_ms < oldest_ms:
                break
            yield one.snapshot_id


def _stands(table: Any, at: str) -> bool:
    """Whether a snapshot is the present one or an ancestor of it.

    Expired snapshots leave gaps in a history where earlier metadata files are missing, too, and some writers leave no
    trace of the gap. Sequence numbers grow along it, so a gap hides an ancestor only between its neighbours. What a gap
    may hide is held for there, because expiry is everyday upkeep, unless the snapshot itself is not expired.
    """
    if not at:
        return True
    wanted, sequence = map(int, at.split(":"))
    oldest: Any = None
    for snapshot in _ancestors(table):
        if wanted in (snapshot.snapshot_id, snapshot.parent_snapshot_id, _picked(snapshot)):
            return True
        if sequence and (snapshot.sequence_number or 0) < sequence:
            return False
        oldest = snapshot
    if oldest is None or oldest.parent_snapshot_id is None:
        return oldest is not None and table.snapshot_by_id(wanted) is None
    return True


def _newest_record(history: Iterator[Any], table: Any, owner: str) -> CommitRecord | None:
    """The newest record of a writer in a history of the table."""
    for snapshot in history:
        picked = _picked(snapshot)
        made = snapshot if picked is None else table.snapshot_by_id(picked)
        if made is not None and made.summary is not None and made.summary.get(_OWNER) == owner:
            record = msgspec.json.decode(made.summary[_RECORD], type=CommitRecord)
            return msgspec.structs.replace(record, at=place_of(snapshot))
    return None


def records_of(table: Any, owner: str) -> Iterator[tuple[Any, CommitRecord]]:
    """The snapshots of a writer that are not expired, whether the present one descends from them or not."""
    for snapshot in table.snapshots():
        if snapshot.summary is not None and snapshot.summary.get(_OWNER) == owner:
            yield snapshot, msgspec.json.decode(snapshot.summary[_RECORD], type=CommitRecord)


def _picked(snapshot: Any) -> int | None:
    """The snapshot whose rows this one has brought back ("cherry-pick"), None if it is none of that kind."""
    source = None if snapshot.summary is None else snapshot.summary.get(_PICKED)
    return None if source is None else int(source)

"""Ages of what is uploaded and archived, when the wall clock is set by a day and when records have odd times."""

import uuid
from types import SimpleNamespace

import msgspec
import pytest

from millstream.core.shared import BacklogLimits
from millstream.format.manifest import (
    ArchivedSegment,
    ArchiveId,
    appended_ms_of,
    describe_part,
    pack_run,
    unpack_run,
    without_timestamps,
)
from millstream.format.names import segment_name
from millstream.model.shared import ObjectId, SharedPartition
from millstream.storage.disk import SystemDisk
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.archiver import _all_facts
from millstream.tiers.manifest import Archive
from millstream.tiers.messages import Upload
from millstream.tiers.shared_objects import RANDOM_BITS
from millstream.tiers.shared_uploads import SharedUploads
from millstream.tiers.uploading import Pace, upload
from millstream.wire.records import build_batch
from sim.engine.local_storage import LocalReactor
from sim.engine.objects import MemoryStore

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000
OWNER = ArchiveId(uuid.UUID(int=5), 0)


@pytest.mark.parametrize("jump_ms", [-DAY_MS, DAY_MS])
def test_what_is_not_uploaded_has_the_age_of_its_append_when_the_clock_is_set_by_a_day(jump_ms):
    reactor = LocalReactor(NOW_MS)
    limits = BacklogLimits(upload_age_ms=60_000)
    stats = StatsSlab(0, "test")
    uploads = SharedUploads(reactor, reactor.wall_ms, None, stats, limits, 1 << 20, lambda _: None)
    uploads.backlog.append(SharedPartition(bytes(16), 0), 0, 10, 100, reactor.now_us() // 1000)
    reactor.jump_ms = jump_ms
    reactor.advance(59_000_000)
    assert (uploads.lag_ms, uploads.backlog.is_due(reactor.now_us() // 1000)) == (59_000, False)
    reactor.advance(1_000_000)
    assert (uploads.lag_ms, uploads.backlog.is_due(reactor.now_us() // 1000)) == (60_000, True)


def uploaded(tmp_path, timestamp, appended_ms):
    data = build_batch([(b"k", b"v", [], timestamp)] * 3, leader_epoch=1)
    path = tmp_path / segment_name(0, 0)
    path.write_bytes(data)
    command = Upload(1, OWNER, str(path), 0, 0, 3, len(data), 1, [], appended_ms)
    return upload(MemoryStore(lambda: 0), SystemDisk(), command, Pace(1e12))


class _Log:
    """Nothing is local."""

    class _Segments:
        """Empty."""

        def __iter__(self):
            return iter(())

        def changed_ms(self, _now_ms):
            return []

    files = SimpleNamespace(segments=_Segments())


class _Partition:
    """What the archiver looks at for retention."""

    def __init__(self, *segments):
        self.log = _Log()
        self.archive = Archive(0, 1)
        for one in segments:
            self.archive.append(one)


def ages(*segments, spilled=False):
    """The time that retention takes for each entry."""
    partition = _Partition(*segments)
    if spilled:
        part = describe_part([pack_run(segments)])
        partition.archive.spilled(part)
    return [one.max_timestamp if one.max_timestamp >= 0 else one.changed_ms for one in _all_facts(partition, NOW_MS)]


def test_a_segment_without_timestamps_has_the_age_of_its_last_append(tmp_path):
    untimed = uploaded(tmp_path, -1, NOW_MS - 5_000)
    assert untimed.max_timestamp < -1
    assert unpack_run(pack_run([untimed])) == [untimed]
    timed = uploaded(tmp_path, 77, NOW_MS - 5_000)
    assert (timed.min_timestamp, timed.max_timestamp) == (77, 77)
    later = msgspec.structs.replace(
        untimed,
        base_offset=3,
        end_offset=6,
        min_timestamp=without_timestamps(NOW_MS - 1_000),
        max_timestamp=without_timestamps(NOW_MS - 1_000),
    )
    assert ages(untimed, later) == [NOW_MS - 5_000, NOW_MS - 1_000]
    assert ages(untimed, later, spilled=True) == [NOW_MS - 1_000], "a part is as young as the newest of it"
    assert ages(timed, later) == [77, NOW_MS - 1_000]


def test_what_an_older_release_archived_without_timestamps_is_kept_or_has_the_age_of_its_shared_object():
    old = ArchivedSegment(0, 3, 100, 1, -1, -1, 1, 80)
    shared = ArchivedSegment(0, 3, 100, 0, -1, -1, 1, object_id=ObjectId((NOW_MS - 9_000) << RANDOM_BITS))
    assert ages(old) == [NOW_MS]
    assert ages(shared) == [NOW_MS - 9_000]
    assert appended_ms_of(-1) is None
    assert without_timestamps(None) == -1

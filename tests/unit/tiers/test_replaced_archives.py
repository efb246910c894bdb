"""An archive in which segments are replaced: lookups, versions, parts, replicas that have trimmed, what is freed."""

import random

import msgspec
import pytest
from numbered_segments import OWNER, numbered

from millstream.errors import Corruption, Rejected
from millstream.format.archive import Replaced
from millstream.format.manifest import (
    RUN_COUNT_MAX,
    ArchivedSegment,
    ManifestPart,
    decode_manifest,
    describe_part,
    encode_manifest,
    pack_run,
    unpack_run,
)
from millstream.model.error_code import ErrorCode
from millstream.tiers.manifest import REPLACEMENTS_MAX, Archive
from millstream.tiers.replacing import Replacement, check_form, find_replaced

ID = bytes(range(16))


def archive_of(count, memory_bytes_max=1 << 20):
    archive = Archive(0, memory_bytes_max)
    made = numbered(count)
    for one in made:
        archive.append(one)
    return archive, made


def merged(segments, revision=7, parts=1):
    """Segments with the offsets of those given."""
    ends = [segments[-1].end_offset] if parts == 1 else [segments[0].end_offset, segments[-1].end_offset]
    base, found = segments[0].base_offset, []
    for number, end in enumerate(ends):
        inside = [one for one in segments if base <= one.base_offset < end]
        size = sum(one.size_bytes for one in inside)
        times = inside[0].min_timestamp, max(one.max_timestamp for one in inside)
        found.append(ArchivedSegment(base, end, size, 5, *times, 1, 90, revision + number))
        base = end
    return tuple(found)


def entry(archive, before, number=1, after=None, **more):
    identity = number.to_bytes(16, "big")
    return Replaced(identity, archive.version, tuple(before), after or merged(before, 100 * number), **more)


def segments_in(archive):
    return [one for one in archive.entries() if isinstance(one, ArchivedSegment)]


@pytest.mark.parametrize("seed", range(6))
def test_replacements_agree_with_a_plain_list_on_replicas_that_trim_at_other_times(seed):
    rng = random.Random(seed)
    early, made = archive_of(rng.randrange(5, 400))
    late, _ = archive_of(len(made))
    model, start = list(made), 0
    for number in range(1, 40):
        live = [one for one in model if one.end_offset > start]
        if rng.random() < 0.3 and len(live) > 3:
            start = rng.randrange(start, live[2].end_offset)
            early.trim(start)
            live = [one for one in model if one.end_offset > start]
        first = rng.randrange(len(live))
        before = live[first : first + rng.randrange(1, 100)]
        change = entry(early, before, number, merged(before, 100 * number, parts=1 + (len(before) > 1)))
        freed = early.replaced(change)
        assert freed is not None and late.replaced(change) is not None
        assert freed.segments == tuple(before)
        at = model.index(before[0])
        model[at : at + len(before)] = change.after
        if rng.random() < 0.3:
            early = Archive.of(decode_manifest(encode_manifest(early.manifest(OWNER))), 1 << 20)
        late.trim(start)
        expected = [one for one in model if one.end_offset > start]
        assert segments_in(early) == segments_in(late) == expected
        assert (early.version, early.size_bytes) == (number, sum(one.size_bytes for one in expected))
        assert early.end_offset == made[-1].end_offset
        one = rng.choice(expected)
        assert early.find_offset(max(start, one.base_offset)) == one
        assert len(early._open) < RUN_COUNT_MAX
        assert early.memory_bytes == sum(len(run.data) + 160 for run in early._runs)


def test_a_replica_that_has_trimmed_all_of_it_frees_the_new_objects():
    archive, made = archive_of(10)
    change = entry(archive, made[2:5])
    archive.trim(made[4].end_offset)
    assert archive.replaced(change).segments == change.after
    assert (archive.version, segments_in(archive)) == (1, made[5:])


def test_an_entry_of_another_version_or_a_repeated_one_changes_nothing():
    archive, made = archive_of(10)
    stale = entry(archive, made[0:2], 1)
    assert archive.replaced(entry(archive, made[5:7], 2)) is not None
    before = encode_manifest(archive.manifest(OWNER))
    assert archive.replaced(stale) is None
    assert archive.replaced(msgspec.structs.replace(stale, id=(2).to_bytes(16, "big"), expected_version=1)) is None
    assert encode_manifest(archive.manifest(OWNER)) == before
    with pytest.raises(Corruption, match="other segments"):
        archive.replaced(entry(archive, made[4:6], 3))
    assert encode_manifest(archive.manifest(OWNER)) == before


def test_the_newest_replacements_are_remembered_through_a_restart():
    archive, made = archive_of(REPLACEMENTS_MAX + 10)
    for number, one in enumerate(made, start=1):
        archive.replaced(entry(archive, [one], number))
    archive = Archive.of(decode_manifest(encode_manifest(archive.manifest(OWNER))))
    assert list(archive.replacements.values()) == list(range(11, REPLACEMENTS_MAX + 11))


def test_a_part_is_replaced_by_another_one_and_its_object_goes_alone():
    archive, made = archive_of(256, memory_bytes_max=0)
    spill = archive.next_spill()
    archive.spilled(spill.part)
    before = made[3:6]
    inside = [one for run in spill.runs for one in unpack_run(run)]
    inside[3:6] = merged(before)
    part = describe_part([pack_run(inside[at : at + 64]) for at in range(0, len(inside), 64)], 1)
    change = entry(archive, before, after=merged(before), part_before=spill.part, part_after=part)
    freed = archive.replaced(change)
    assert (freed.part_objects, freed.parts, freed.segments) == ((spill.part,), (), tuple(before))
    assert (list(archive.parts), archive.segment_count) == ([part], 254)
    again = Archive.of(decode_manifest(encode_manifest(archive.manifest(OWNER))))
    assert list(again.parts) == [part]
    archive.trim(part.end_offset)
    gone = entry(archive, before, 2, part_before=part, part_after=msgspec.structs.replace(part, version=2))
    assert archive.replaced(gone).parts == (gone.part_after,)


def refused(archive, wanted):
    with pytest.raises(Rejected) as caught:
        find_replaced(archive, wanted)
    return caught.value.code


def test_what_the_leader_compares_before_it_proposes():
    archive, made = archive_of(256, memory_bytes_max=0)
    wanted = Replacement(ID, 0, tuple(made[200:203]), merged(made[200:203]))
    assert find_replaced(archive, wanted) is None
    assert refused(archive, msgspec.structs.replace(wanted, expected_version=1)) == ErrorCode.INVALID_UPDATE_VERSION
    other = (msgspec.structs.replace(made[200], checksum=1), *made[201:203])
    assert refused(archive, msgspec.structs.replace(wanted, before=other)) == ErrorCode.INVALID_REQUEST
    behind = msgspec.structs.replace(made[-1], base_offset=made[-1].end_offset, end_offset=made[-1].end_offset + 5)
    assert refused(archive, msgspec.structs.replace(wanted, before=(behind,))) == ErrorCode.INVALID_REQUEST
    archive.spilled(archive.next_spill().part)
    (part,) = archive.parts
    assert isinstance(part, ManifestPart)
    count = part.segment_count
    assert find_replaced(archive, msgspec.structs.replace(wanted, before=tuple(made[:3]))) == part
    across = msgspec.structs.replace(wanted, before=tuple(made[count - 1 : count + 1]))
    assert refused(archive, across) == ErrorCode.INVALID_REQUEST
    archive.trim(made[202].end_offset)
    assert refused(archive, wanted) == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    "change",
    [
        {"id": b"short"},
        {"id": bytes(16)},
        {"before": ()},
        {"after": ()},
        {"before": numbered(129)},
        {"before": numbered(4)[::2]},
        {"after": merged(numbered(4))},
        {"after": tuple(msgspec.structs.replace(one, revision=0) for one in merged(numbered(3)))},
        {"after": tuple(msgspec.structs.replace(one, index_bytes=0) for one in merged(numbered(3)))},
        {"after": tuple(msgspec.structs.replace(one, checksum=1 << 32) for one in merged(numbered(3)))},
        {"before": merged(numbered(3))},
    ],
)
def test_a_request_that_cannot_be_right_is_refused(change):
    wanted = Replacement(ID, 0, tuple(numbered(3)), merged(numbered(3)))
    check_form(wanted)
    with pytest.raises(Rejected):
        check_form(msgspec.structs.replace(wanted, **{k: v if k == "id" else tuple(v) for k, v in change.items()}))

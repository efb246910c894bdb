"""The bytes of the write-ahead log, and what a reader makes of them when they are torn, old, damaged or missing."""

import random
import struct

import pytest
from batch_bytes import make_batch
from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format import wal, wal_scan


def record(batch: bytes, group: int, base: int, last: int, epoch: int = 0) -> bytes:
    crc = int.from_bytes(batch[17:21], "big")
    return wal.RECORD.pack(wal.Kind.BATCH, 0, 0, group, epoch, base, last, len(batch), crc)


def make_frame(
    batches: list[tuple[int, bytes]],
    *,
    generation: int,
    sequence: int,
    position: int,
    durable: int = -1,
    needed: int = 1,
) -> bytes:
    table = b"".join(
        record(batch, group, int.from_bytes(batch[:8], "big"), int.from_bytes(batch[:8], "big"))
        for group, batch in batches
    )
    payload = b"".join(batch for _, batch in batches)
    slot = memoryview(bytearray(2 * wal.FRAME_HEAD_BYTES + len(table)))
    slot[64 : 64 + len(table)] = table
    durable = sequence - 1 if durable < 0 else durable
    wal.pack_heads(slot, len(batches), len(payload), generation, sequence, durable, needed, position)
    pad = bytes(wal.padding_bytes(len(batches), len(payload), position))
    return bytes(slot[:-64]) + payload + pad + bytes(slot[64:])


class WalFile:
    """A file of the write-ahead log, filled frame by frame."""

    def __init__(self, generation: int = 7, first: int = 1, size: int = 64 * 1024) -> None:
        self.data = bytearray(size)
        self.data[:512] = wal.encode_file_header(wal.FileHeader(3, generation, first, size))
        self.generation = generation
        self.sequence = first
        self.position = 512
        self.places: list[int] = []

    def add(self, *batches: tuple[int, bytes], needed: int = 1) -> int:
        frame = make_frame(
            list(batches), generation=self.generation, sequence=self.sequence, position=self.position, needed=needed
        )
        self.data[self.position : self.position + len(frame)] = frame
        self.places.append(self.position)
        self.position += len(frame)
        self.sequence += 1
        return self.places[-1]

    def scan(self) -> wal_scan.Scan:
        return wal_scan.scan(memoryview(self.data))


def judge(*files: WalFile, state: wal.WalState | None = None) -> wal_scan.Verdict:
    return wal_scan.judge([file.scan() for file in files], state or wal.WalState())


def test_file_header_bytes_never_change() -> None:
    data = wal.encode_file_header(
        wal.FileHeader(shard=3, generation=0x0102030405060708, first_sequence=9, file_bytes=1 << 25)
    )
    assert data[:44].hex() == (
        "4d5357414c0d0a0003000000030000000807060504030201090000000000000000000002000000009af475ec"
    )  # fmt: skip
    assert data[44:] == bytes(468)
    assert wal_scan.parse_file_header(data) == (3, 0x0102030405060708, 9, 1 << 25)


def test_a_file_of_the_version_before_replication_is_read_and_one_of_a_later_version_is_not() -> None:
    before = bytes.fromhex("4d5357414c0d0a0001000000030000000807060504030201090000000000000000000002000000000c553897")
    assert wal_scan.parse_file_header(before.ljust(512, b"\0")) == (3, 0x0102030405060708, 9, 1 << 25)
    later = before[:8] + b"\4" + before[9:40]
    assert wal_scan.parse_file_header((later + crc32c(later).to_bytes(4, "little")).ljust(512, b"\0")) is None


def test_kinds_of_records_never_change() -> None:
    assert {kind.name: kind.value for kind in wal.Kind} == {
        "BATCH": 1,
        "TRIM": 2,
        "TRUNCATE": 3,
        "OPAQUE": 4,
        "CONTROL": 5,
        "VOTE": 6,
        "ADOPT": 7,
    }


def test_frame_bytes_never_change() -> None:
    batch = make_batch(42, b"abc")
    frame = make_frame([(5, batch)], generation=7, sequence=11, position=512)
    assert len(frame) == 4096
    head = "574d4631GOLDEN07000000000000000b000000000000000a0000000000000001000000000000000002000000000000"
    crc = frame[4:8].hex()
    assert frame[:48].hex() == head.replace("GOLDEN", crc)
    assert struct.unpack_from("<IIII", frame, 48) == (1, crc32c(frame[64:100]), 64, 4096)
    assert int.from_bytes(frame[4:8], "little") == crc32c(frame[8:64])
    assert (
        frame[64:100].hex() == "01"
        "00"
        "0000"
        "05000000"
        "00000000"
        "2a00000000000000"
        "2a00000000000000"
        "40000000" + batch[17:21][::-1].hex()
    )
    assert frame[100:164] == batch
    assert frame[-100:-64] == frame[64:100]
    assert frame[-64:] == b"WMT1" + frame[4:64]
    assert crc32c(frame) == 4216964092


@pytest.mark.parametrize(
    ("which", "size", "crc"), [(0, 1024, 379673859), (1, 512, 2537370821)], ids=["one page", "one sector"]
)
def test_a_frame_as_they_were_made_once_is_read(
    which: int, size: int, crc: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "frame_bytes", lambda *counts: wal.frame_bytes_once(*counts[:2])[which])
    frame = make_frame([(5, make_batch(42, b"abc"))], generation=7, sequence=11, position=512)
    monkeypatch.undo()
    assert (len(frame), crc32c(frame)) == (size, crc)
    (found,) = wal_scan.scan(memoryview(bytes(512) + frame + bytes(512))).frames
    assert (found.sequence, found.position, found.end) == (11, 512, 512 + size)
    assert (found.bad, found.mended) == (frozenset(), False)


@pytest.mark.parametrize("payload_bytes", [0, 1, 100, 700, 5000])
@pytest.mark.parametrize("position", [512, 1024, 3584, 4096, 4608, 40960])
def test_no_page_holds_bytes_of_both_tables(payload_bytes: int, position: int) -> None:
    for records in range(1, 400):
        copy = wal.FRAME_HEAD_BYTES + records * wal.RECORD_BYTES
        size = wal.frame_bytes(records, payload_bytes, position)
        padding = wal.padding_bytes(records, payload_bytes, position)
        assert size % wal.SECTOR_BYTES == 0
        assert 2 * copy + payload_bytes + padding == size
        assert 0 <= padding < wal.PADDING_BYTES_MAX
        assert (position + copy - 1) // wal.PAGE_BYTES < (position + size - copy) // wal.PAGE_BYTES


@pytest.mark.parametrize("bad", [512, 4096], ids=["sector", "page"])
def test_one_bad_piece_of_the_disk_never_hides_what_a_frame_held(bad: int) -> None:
    file = WalFile()
    for n in range(8):
        file.add(*[(group, make_batch(n)) for group in range(1, 2 + 5 * n)])
    pristine = bytes(file.data)
    frames = {one.sequence: one.table for one in file.scan().frames}
    assert len(frames) == 8
    for at in range(0, file.position, bad):
        file.data[:] = pristine
        file.data[at : at + bad] = bytes(bad)
        assert {one.sequence: one.table for one in file.scan().frames} == frames


@pytest.mark.parametrize("newer", ["this", "the other"])
@pytest.mark.parametrize("bad", [512, 4096], ids=["sector", "page"])
def test_the_header_of_another_file_does_not_hide_the_frames(bad: int, newer: str) -> None:
    generation = 2 if newer == "this" else 1
    first, second = WalFile(generation=3 - generation), WalFile(generation=generation, first=3)
    for file, count in ((first, 2), (second, 3)):
        for n in range(count):
            file.add((1, make_batch(n)))
    whole = [one.sequence for one in second.scan().frames]
    second.data[:bad] = first.data[:bad]
    headers = [wal_scan.parse_file_header(file.data) for file in (first, second)]
    doubtful = wal_scan.doubtful_headers(headers, 3)
    assert doubtful == [True, True]
    for file, found in ((first, [1, 2]), (second, whole)):
        scanned = wal_scan.scan(memoryview(file.data), doubtful=True)
        assert [one.sequence for one in scanned.frames] == found
    assert wal_scan.doubtful_headers(headers[:1], 3) == [False]
    assert wal_scan.doubtful_headers(headers[:1], 1) == [True], "it names another shard"


def test_state_file_survives_a_round_trip_and_nothing_else() -> None:
    state = wal.WalState(next_sequence=10, next_generation=1 << 33, clean=True, logs=b"xyz", term=3)
    data = wal.encode_wal_state(state)
    assert wal.decode_wal_state(bytearray(data)) == state
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        with pytest.raises(Corruption):
            wal.decode_wal_state(flipped)
    with pytest.raises(Corruption):
        wal.decode_wal_state(bytearray(data[:-1]))


def test_records_come_back_with_their_place() -> None:
    file = WalFile()
    first, second = make_batch(0, b"one"), make_batch(9, b"two" * 300)
    file.add((1, first), (2, second))
    (frame,) = file.scan().frames
    found = [(r.group, r.base, bytes(file.data[at : at + r.size])) for r, at in frame.records()]
    assert found == [(1, 0, first), (2, 9, second)]
    assert not frame.bad
    assert not frame.mended


def test_frames_of_an_earlier_generation_are_void() -> None:
    file = WalFile(generation=1)
    for n in range(20):
        file.add((1, make_batch(n, bytes(600))))
    newer = WalFile(generation=2, first=21)
    newer.data[512:] = file.data[512:]
    newer.add((1, make_batch(20, b"short")))
    assert [frame.sequence for frame in newer.scan().frames] == [21]
    assert not newer.scan().torn


@pytest.mark.parametrize("lost_sector", [0, 1, 2])
def test_a_torn_last_frame_is_cut_and_nothing_is_reported_as_lost(lost_sector: int) -> None:
    file = WalFile()
    file.add((1, make_batch(0)))
    at = file.add((2, make_batch(0, bytes(range(200)) * 5)))
    file.data[at + 512 * lost_sector : at + 512 * (lost_sector + 1)] = bytes(512)
    verdict = judge(file)
    assert verdict.lost == ()
    assert verdict.durable_sequence == 1
    kept = [
        record.group
        for file_no, place in verdict.order
        for i, (record, _) in enumerate(file.scan().frames[place].records())
        if i not in file.scan().frames[place].bad
    ]
    # The payload lies in all three sectors, so the record never verifies, whichever copy of the table is left.
    assert kept == [1]


def test_of_a_torn_last_frame_what_verifies_is_kept() -> None:
    file = WalFile()
    at = file.add((1, make_batch(0, bytes(400))), (2, make_batch(5, bytes(1200))))
    file.data[at + 1024 : at + 1536] = bytes([7]) * 512
    verdict = judge(file)
    assert verdict.lost == ()
    assert verdict.torn == (0, 0)
    assert file.scan().frames[0].bad == {1}


def test_a_bad_payload_before_a_later_frame_is_corruption_of_that_record_only() -> None:
    file = WalFile()
    file.add((1, make_batch(0)))
    at = file.add((1, make_batch(1, bytes(900))), (2, make_batch(0, bytes(900))))
    file.add((1, make_batch(2)))
    file.data[at + 64 + 72 + 500] ^= 1
    verdict = judge(file)
    assert verdict.durable_sequence == 2
    assert verdict.torn is None
    assert [file.scan().frames[place].bad for _, place in verdict.order] == [set(), {0}, set()]


@pytest.mark.parametrize("byte", range(61))
def test_no_byte_of_a_batchs_header_can_be_another_unseen(byte: int) -> None:
    """Its checksum leaves out the first 21: the frame's table and what every batch has guard those."""
    file = WalFile()
    at = file.add((1, make_batch(3)), (2, make_batch(0)))
    file.data[at + 64 + 72 + byte] ^= 1
    assert file.scan().frames[0].bad == {0}


@pytest.mark.parametrize("copy", ["first", "second"])
def test_one_bad_sector_in_head_or_table_loses_nothing(copy: str) -> None:
    file = WalFile()
    file.add((1, make_batch(0)))
    at = file.add((2, make_batch(0, bytes(3000))))
    file.add((1, make_batch(1)))
    sector = at if copy == "first" else file.places[2] - 512
    file.data[sector : sector + (100 if copy == "first" else 512)] = bytes(100 if copy == "first" else 512)
    verdict = judge(file)
    frame = file.scan().frames[1]
    assert verdict.lost == ()
    assert [file.scan().frames[p].sequence for _, p in verdict.order] == [1, 2, 3]
    assert frame.mended
    assert [record.group for record, _ in frame.records()] == [2]


def test_a_frame_without_any_readable_table_before_a_later_one_is_lost_and_said_so() -> None:
    file = WalFile()
    file.add((1, make_batch(0)))
    at = file.add((2, make_batch(0)))
    file.add((1, make_batch(1)))
    end = file.places[2]
    file.data[at:end] = bytes(end - at)
    assert file.scan().gaps == ((at, end),)
    assert judge(file).lost == ((2, 2),)


def test_a_missing_file_is_lost_and_a_checkpointed_one_is_not_missed() -> None:
    first, second = WalFile(generation=1), WalFile(generation=2, first=3)
    first.add((1, make_batch(0)))
    first.add((1, make_batch(1)))
    second.add((1, make_batch(2)))
    assert judge(second).lost == ((1, 2),)
    assert judge(second, state=wal.WalState(next_sequence=3)).lost == ()
    assert judge(first, state=wal.WalState(next_sequence=3)).order == ()


def test_a_frame_says_what_is_no_longer_needed() -> None:
    second = WalFile(generation=2, first=3)
    second.add((1, make_batch(2)), needed=3)
    assert judge(second).lost == ()


def test_an_unreadable_file_header_does_not_hide_the_frames() -> None:
    file = WalFile(generation=9)
    file.add((1, make_batch(0)))
    file.add((1, make_batch(1)))
    file.data[:512] = bytes(512)
    scan = file.scan()
    assert scan.header is None
    assert [frame.sequence for frame in scan.frames] == [1, 2]
    assert judge(file).next_generation == 10


def test_what_lies_behind_a_hole_that_was_never_promised_is_void() -> None:
    file = WalFile()
    file.add((1, make_batch(0)))
    file.sequence = 3
    frame = make_frame([(1, make_batch(2))], generation=7, sequence=3, position=file.position, durable=1)
    file.data[file.position : file.position + len(frame)] = frame
    verdict = judge(file)
    assert verdict.lost == ()
    assert [file.scan().frames[p].sequence for _, p in verdict.order] == [1]
    assert verdict.next_sequence == 2


def test_a_note_is_checked_by_its_own_checksum() -> None:
    table = wal.RECORD.pack(wal.Kind.CONTROL, 0, 0, 4, 2, 0, 0, 5, crc32c(b"voted"))
    slot = memoryview(bytearray(128 + 36))
    slot[64:100] = table
    wal.pack_heads(slot, 1, 5, 7, 1, 0, 1, 512)
    data = slot[:100].tobytes() + b"voted" + bytes(wal.padding_bytes(1, 5, 512)) + slot[64:].tobytes()
    file = WalFile()
    file.data[512 : 512 + len(data)] = data
    assert not file.scan().frames[0].bad
    file.data[512 + 101] ^= 1
    assert file.scan().frames[0].bad == {0}


def test_damage_anywhere_is_lost_torn_or_harmless_but_never_wrong() -> None:
    """Whatever 64 bytes are overwritten: a record that comes back verified is one that was written, at its place."""
    rng = random.Random(20)
    file = WalFile(size=32 * 1024)
    written = {}
    for n in range(12):
        batch = make_batch(n, rng.randbytes(rng.choice([20, 500, 1500])))
        file.add((1, batch), (2, batch))
        written[n] = batch
    pristine = bytes(file.data)
    for _ in range(400):
        at = rng.randrange(0, len(pristine) - 64)
        file.data[:] = pristine
        file.data[at : at + 64] = rng.choice(
            [bytes(64), rng.randbytes(64), pristine[at - 512 : at - 448].ljust(64, b"\0")]
        )
        scan = file.scan()
        verdict = wal_scan.judge([scan], wal.WalState())
        seen = {scan.frames[place].sequence for _, place in verdict.order}
        lost = {n for first, last in verdict.lost for n in range(first, last + 1)}
        assert seen | lost >= set(range(1, 12)), at
        for _, place in verdict.order:
            frame = scan.frames[place]
            for number, (entry, position) in enumerate(frame.records()):
                if number not in frame.bad:
                    assert bytes(file.data[position : position + entry.size]) == written[entry.base], at

"""The bytes of indexes, epochs, producer snapshots and file names: they are on people's disks."""

from array import array

import msgspec
import pytest
from batch_bytes import make_batch
from crc32c import crc32c

from millstream.errors import Corruption
from millstream.format import epochs, index, names, producers, segment
from millstream.format.sealed import seal, unseal


def test_sealed_bytes_never_change() -> None:
    assert seal(b"TEST", 2, b"payload").hex() == "544553540200000007000000" + "1299f89e" + b"payload".hex()


def test_a_sealed_file_of_another_kind_or_version_is_refused_by_name() -> None:
    data = seal(b"TEST", 2, b"payload")
    assert unseal(b"TEST", 2, data) == b"payload"
    with pytest.raises(Corruption, match="b'TEST' where b'MSEP'"):
        unseal(b"MSEP", 2, data)
    with pytest.raises(Corruption, match="version 2, this code reads 1"):
        unseal(b"TEST", 1, data)


def test_epochs_bytes_never_change() -> None:
    state = epochs.LogState(
        start_offset=300,
        epochs=((0, 0), (4, 1000)),
        clean_offset=7,
        vote=epochs.StoredVote(5, 2),
        base=epochs.RaftBase(100, 103, 4, b"base"),
        controls=(epochs.StoredControl(1103, 1100, 5, b"one"), epochs.StoredControl(1104, 1100, 6, b"")),
        local_start=900,
    )
    data = epochs.encode_log_state(state)
    before = "cd012c929200009204cd03e8c4000792050294646704c404626173659294cd044fcd044c05c4036f6e6594cd0450cd044c06c400"
    assert data[:12].hex() == "4d5345500300000038000000"
    assert data[16:].hex() == f"98{before}cd0384"
    assert epochs.decode_log_state(data) == state
    version_2 = epochs.decode_log_state(seal(b"MSEP", 2, bytes.fromhex(f"97{before}")))
    assert version_2 == msgspec.structs.replace(state, local_start=0)


def test_epochs_of_the_version_before_replication_are_read() -> None:
    for payload, clean in (("93cd012c929200009204cd03e8c40176", 0), ("94cd012c929200009204cd03e8c4017607", 7)):
        state = epochs.decode_log_state(seal(b"MSEP", 1, bytes.fromhex(payload)))
        assert (state.start_offset, state.epochs, state.clean_offset) == (300, ((0, 0), (4, 1000)), clean)
        assert (state.vote, state.base, state.controls) == (epochs.StoredVote(), epochs.RaftBase(), ())


@pytest.mark.parametrize("position", [9, 11])
def test_a_control_entry_out_of_place_is_corruption(position: int) -> None:
    control = epochs.StoredControl(position, 10, 1, b"")
    with pytest.raises(Corruption, match="out of place"):
        epochs.decode_log_state(epochs.encode_log_state(epochs.LogState(controls=(control,))))


def test_every_flipped_bit_of_an_epochs_file_is_found() -> None:
    data = epochs.encode_log_state(epochs.LogState(start_offset=5, epochs=((1, 2),)))
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(Corruption):
            epochs.decode_log_state(flipped)


def test_epochs_that_do_not_rise_are_corruption() -> None:
    with pytest.raises(Corruption, match="rise"):
        epochs.decode_log_state(epochs.encode_log_state(epochs.LogState(epochs=((2, 0), (1, 5)))))


def test_producer_snapshot_is_bound_to_its_offset() -> None:
    data = producers.encode_producers(77, b"state")
    assert data.hex() == "4d535053010000000d000000" + data[12:16].hex() + "4d00000000000000" + b"state".hex()
    assert producers.decode_producers(77, data) == b"state"
    with pytest.raises(Corruption):
        producers.decode_producers(78, data)
    with pytest.raises(Corruption):
        producers.decode_producers(77, data[:-1])


def _summary(end: int = 20, size: int = 9000, *, sealed: bool = False) -> index.SegmentSummary:
    return index.SegmentSummary(10, end, size, 5, 50, 12, 99, sealed)


def test_index_bytes_never_change() -> None:
    columns = array("q", [10, 15]), array("q", [0, 4096]), array("q", [-1, 40])
    data = index.encode_block(_summary(sealed=True), *columns, array("I", [0, 0xA1B2C3D4]))
    assert data.hex() == (
        "4d495832" + data[4:8].hex() + "0200000001000000"
        "0a000000000000001400000000000000282300000000000005000000000000003200000000000000"
        "0c0000000000000063000000000000000000000000000000"
        "0000000000000000ffffffffffffffff00000000"
        "05000000001000002800000000000000d4c3b2a1"
    )  # fmt: skip
    scan = index.scan_index(data, 10)
    assert scan.whole
    assert scan.summary == _summary(sealed=True)
    assert (list(scan.offsets), list(scan.positions), list(scan.timestamps)) == ([10, 15], [0, 4096], [-1, 40])
    assert list(scan.sums) == [0, 0xA1B2C3D4]


def test_an_index_of_the_version_before_is_read_without_checksums() -> None:
    old = bytes.fromhex(
        "4d495831" + "00000000" + "0200000001000000"
        "0a000000000000001400000000000000282300000000000005000000000000003200000000000000"
        "0c0000000000000063000000000000000000000000000000"
        "0000000000000000ffffffffffffffff"
        "05000000001000002800000000000000"
    )  # fmt: skip
    old = old[:4] + crc32c(old[8:]).to_bytes(4, "little") + old[8:]
    columns = array("q", [25]), array("q", [9000]), array("q", [50])
    new = index.encode_block(_summary(40, 20000), *columns, array("I", [7]))
    scan = index.scan_index(old + new, 10)
    assert scan.whole
    assert (list(scan.offsets), list(scan.positions)) == ([10, 15, 25], [0, 4096, 9000])
    assert list(scan.sums) == [0, 0, 7]


def test_an_index_is_read_up_to_its_first_bad_block() -> None:
    first = index.encode_block(_summary(), array("q", [10]), array("q", [0]), array("q", [-1]))
    second = index.encode_block(_summary(30, 12000), array("q", [22]), array("q", [9000]), array("q", [50]))
    whole = first + second
    for at in range(len(first), len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 4
        scan = index.scan_index(flipped, 10)
        assert not scan.whole
        assert scan.valid_bytes == len(first)
        assert scan.summary == _summary()
        assert list(scan.offsets) == [10]
    assert index.scan_index(whole[:-1], 10).valid_bytes == len(first)
    assert index.scan_index(whole, 11).summary is None


def test_names_round_trip_and_refuse_others() -> None:
    assert names.offset_name(42, ".log") == "00000000000000000042.log"
    assert names.parse_offset("00000000000000000042.log", ".log") == 42
    for other in (
        "42.log",
        "00000000000000000042.index",
        "0000000000000000004a.log",
        "00000000000000000042.log.tmp",
        "epochs",
    ):
        assert names.parse_offset(other, ".log") is None
    assert names.wal_name(3) == "00000003.wal"
    assert names.parse_wal_name("00000003.wal") == 3
    assert names.parse_wal_name("state") is None


def test_walking_stops_at_the_first_thing_that_is_no_batch() -> None:
    batches = [make_batch(0, b"x" * 10, delta=4), make_batch(5, b"y" * 99), make_batch(6)]
    data = memoryview(b"".join(batches))
    assert [(b.base_offset, b.last_offset, b.position) for b in segment.walk(data)] == [
        (0, 4, 0),
        (5, 5, 71),
        (6, 6, 231),
    ]
    assert [b.base_offset for b in segment.walk(data[:-1])] == [0, 5]
    assert [b.base_offset for b in segment.walk(bytes(data[:71]) + bytes(500))] == [0]

"""A crash may leave any sector of any file of a chunk out. What recovery trusts is whole, in order, and no less than
what is whole."""

import random

import pytest
from chunk_support import MemoryChunk

from millstream.errors import Corruption
from millstream.format.events import ChunkEnds, recover_chunk
from millstream.format.events.recovery import descriptors_again
from millstream.format.events.sidecar import ENTRY_BYTES, SIDECAR_HEADER_BYTES

FILES = (".meta", ".data", ".desc", ".idx", ".crc")


def three_batches():
    chunk = MemoryChunk(chunk=5, base_offset=100)
    chunk.append([(b"{}", b"first"), (b'{"a":1}', b"")])
    chunk.append([(b"one", b"second" * 3)])
    chunk.append([(b"x", b"third"), (b"y", b"3"), (b"", b"")])
    return chunk


def test_a_whole_chunk_is_trusted_whole():
    chunk = three_batches()
    found = recover_chunk(chunk.recovery_files(), 5, durable_offset=106)
    assert (found.batches, found.ends) == (tuple(chunk.entries), chunk.ends)
    assert (found.next_offset, found.stopped, found.damaged, found.sound_descriptors) == (106, None, False, 6)
    assert found.sidecar_end == len(chunk.files[".crc"])


@pytest.mark.parametrize("suffix", FILES)
def test_a_tail_torn_at_every_byte_costs_the_batches_that_it_touches(suffix):
    chunk = three_batches()
    file_ends = {
        ".meta": [entry.ends.meta for entry in chunk.entries],
        ".data": [entry.ends.data for entry in chunk.entries],
        ".idx": [entry.ends.index for entry in chunk.entries],
        ".crc": [SIDECAR_HEADER_BYTES + ENTRY_BYTES * (n + 1) for n in range(3)],
        ".desc": [0, 0, 0],
    }[suffix]
    for size in range(SIDECAR_HEADER_BYTES if suffix == ".crc" else 0, len(chunk.files[suffix])):
        torn = three_batches()
        del torn.files[suffix][size:]
        found = recover_chunk(torn.recovery_files(), 5)
        assert len(found.batches) == sum(end <= size for end in file_ends), (suffix, size)
        assert found.ends == (found.batches[-1].ends if found.batches else ChunkEnds())
        assert not found.damaged


@pytest.mark.parametrize("suffix", (".meta", ".data", ".idx", ".crc"))
def test_every_flipped_bit_ends_the_trust_at_its_batch(suffix):
    sizes = len(three_batches().files[suffix])
    for at in range(SIDECAR_HEADER_BYTES if suffix == ".crc" else 0, sizes):
        bent = three_batches()
        bent.files[suffix][at] ^= 1 << at % 8
        found = recover_chunk(bent.recovery_files(), 5)
        assert len(found.batches) < 3, (suffix, at)
        assert found.stopped is not None
        assert found.batches == tuple(bent.entries[: len(found.batches)])


def test_every_missing_set_of_sectors_leaves_a_prefix():
    rng = random.Random(7)
    for seed in range(300):
        chunk = MemoryChunk()
        for _ in range(4):
            chunk.append([(rng.randbytes(rng.randrange(60)), rng.randbytes(rng.randrange(900))) for _ in range(3)])
        torn = {suffix: bytes(data) for suffix, data in chunk.files.items()}
        for suffix in FILES:
            if rng.random() < 0.5 and suffix != ".crc":
                at = rng.randrange(len(chunk.files[suffix]))
                chunk.files[suffix][at : at + 512] = bytes(len(chunk.files[suffix][at : at + 512]))
        found = recover_chunk(chunk.recovery_files(), 0)
        end = found.ends
        for suffix, size in ((".meta", end.meta), (".data", end.data), (".idx", end.index)):
            assert chunk.files[suffix][:size] == torn[suffix][:size], seed


def test_damage_before_the_durable_offset_is_no_torn_tail():
    chunk = three_batches()
    chunk.files[".data"][6] ^= 1
    assert recover_chunk(chunk.recovery_files(), 5, durable_offset=102).damaged is False
    found = recover_chunk(chunk.recovery_files(), 5, durable_offset=103)
    assert (found.damaged, found.next_offset) == (True, 102)
    assert "batch at offset 102: its data are missing or wrong" in found.stopped


def test_descriptors_are_written_again_from_the_index():
    for at in range(0, 6 * 48, 7):
        chunk = three_batches()
        whole = bytes(chunk.files[".desc"])
        chunk.files[".desc"][at] ^= 0xFF
        found = recover_chunk(chunk.recovery_files(), 5)
        assert len(found.batches) == 3
        sound = found.sound_descriptors
        assert sound * 48 <= at
        before = next((one.ends for one in chunk.entries if one.ends.events == sound), ChunkEnds())
        again = descriptors_again(chunk.files[".idx"], 5, before, found.ends.events)
        assert whole[: sound * 48] + again == whole


def test_a_chunk_of_another_number_or_without_a_header_is_refused():
    chunk = three_batches()
    with pytest.raises(Corruption, match="chunk 5 lies beside chunk 6"):
        recover_chunk(chunk.recovery_files(), 6)
    chunk.files[".crc"][0] ^= 1
    with pytest.raises(Corruption, match="no sidecar header"):
        recover_chunk(chunk.recovery_files(), 5)

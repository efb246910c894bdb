"""The codecs: both ways, bounded, and honest about garbage."""

import gzip
import tracemalloc
from random import Random

import cramjam
import lz4.frame
import pytest
import zstandard

from millstream.model.error_code import ErrorCode
from millstream.wire.compression import Codec, compress, decompress
from millstream.wire.errors import BatchError

CODECS = list(Codec)[1:]
TEXT = b"a line that repeats itself, " * 5000
NOISE = Random(1).randbytes(100_000)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE], ids=["empty", "one", "text", "noise"])
def test_data_survives_both_ways(codec: int, data: bytes) -> None:
    for shape in (data, bytearray(data), memoryview(data)):
        assert decompress(codec, memoryview(compress(codec, shape))) == data


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_level_changes_the_size(codec: int) -> None:
    data = (TEXT + NOISE[:2000]) * 3
    assert compress(codec, data, 1) != compress(codec, data, 9)
    assert decompress(codec, compress(codec, data, 9)) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_output_of_exactly_the_limit_passes_and_one_byte_more_does_not(codec: int) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    with pytest.raises(BatchError) as caught:
        decompress(codec, packed, len(TEXT) - 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_a_cut_anywhere_is_found(codec: int) -> None:
    packed = compress(codec, TEXT[:20_000])
    step = max(1, len(packed) // 200)
    for cut in range(0, len(packed), step):
        if codec == Codec.SNAPPY and cut == 16:
            continue  # xerial's header alone is a stream of no blocks
        with pytest.raises(BatchError) as caught:
            decompress(codec, packed[:cut])
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_only_raises_batch_error(codec: int) -> None:
    rng = Random(codec)
    packed = compress(codec, TEXT[:3000])
    for _ in range(400):
        bent = bytearray(packed)
        for _ in range(rng.randint(1, 3)):
            bent[rng.randrange(len(bent))] = rng.randrange(256)
        for data in (bytes(bent), rng.randbytes(rng.randint(0, 50))):
            try:
                decompress(codec, data, 1 << 20)
            except BatchError:
                continue


def bombs() -> dict[str, tuple[int, bytes]]:
    zeros = bytes(64 << 20)
    streamed = zstandard.ZstdCompressor().compressobj()
    return {
        "gzip": (Codec.GZIP, gzip.compress(zeros)),
        "lz4": (Codec.LZ4, lz4.frame.compress(zeros, block_linked=False)),
        "zstd with its size": (Codec.ZSTD, zstandard.ZstdCompressor().compress(zeros)),
        "zstd without": (Codec.ZSTD, streamed.compress(zeros) + streamed.flush()),
        "snappy claim": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 20),
        "xerial claim": (Codec.SNAPPY, b"\x82SNAPPY\0" + bytes(8) + b"\x7f\xff\xff\xff" + b"x"),
    }


def test_a_bomb_costs_no_more_than_its_limit() -> None:
    for name, (codec, packed) in bombs().items():
        tracemalloc.start()
        try:
            with pytest.raises(BatchError):
                decompress(codec, packed, 1 << 20)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 << 20, name


def test_a_gzip_stream_of_many_members_is_refused_before_it_takes_long() -> None:
    member = compress(Codec.GZIP, b"a")
    assert decompress(Codec.GZIP, member * 64) == b"a" * 64
    with pytest.raises(BatchError, match="64 members"):
        decompress(Codec.GZIP, member * 65)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(BatchError) as caught:
        decompress(5, b"x")
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(ValueError, match="codec 9"):
        compress(9, b"x")


class TestForms:
    """Forms that other producers write and our compressor does not."""

    def test_raw_snappy(self) -> None:
        assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT

    def test_several_gzip_members(self) -> None:
        assert decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"

    def test_several_zstd_frames_and_a_skippable_one(self) -> None:
        frame = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
        skippable = b"\x55\x2a\x4d\x18\x03\0\0\0abc"
        assert decompress(Codec.ZSTD, frame + skippable + frame) == TEXT * 2

    def test_a_zstd_frame_that_does_not_say_its_size(self) -> None:
        for data in (TEXT, NOISE * 5):
            stream = zstandard.ZstdCompressor(level=1).compressobj()
            packed = stream.compress(data) + stream.flush()
            assert zstandard.frame_content_size(packed) == -1
            assert decompress(Codec.ZSTD, packed) == data
            with pytest.raises(BatchError):
                decompress(Codec.ZSTD, packed[:-1])

    def test_an_lz4_frame_with_linked_blocks_and_its_size(self) -> None:
        data = NOISE * 4
        packed = lz4.frame.compress(data, block_linked=True, store_size=True, content_checksum=True)
        assert decompress(Codec.LZ4, packed) == data

    def test_bytes_behind_an_lz4_frame_are_refused(self) -> None:
        with pytest.raises(BatchError):
            decompress(Codec.LZ4, compress(Codec.LZ4, TEXT) + b"x")

    def test_our_lz4_blocks_are_independent_as_kafka_demands(self) -> None:
        assert compress(Codec.LZ4, TEXT)[4] & 0x20

"""Chunks in memory, made by the production encoders."""

from millstream.format.events import ChunkEnds, build_event_batch, decode_event_batch, encode_descriptors, encode_index
from millstream.format.events.batch import Producer
from millstream.format.events.recovery import ChunkFiles
from millstream.format.events.sidecar import SidecarHeader, encode_entry, encode_header, entry_of
from millstream.wire.batch import HEADER

UUID = bytes(range(16))
EVENT_BYTES_MAX = 1 << 24


def batch_bytes(events, *, base_offset=0, leader_epoch=0, now_ms=1000, producer=None):
    """One batch as it stands in a log: (metadata, data) each."""
    pieces = build_event_batch(
        [meta for meta, _ in events], [[data] for _, data in events], now_ms=now_ms, producer=producer or Producer()
    )
    batch = bytearray(b"".join(pieces))
    HEADER.pack_into(
        batch, 0, base_offset, *HEADER.unpack_from(batch)[1:2], leader_epoch, *HEADER.unpack_from(batch)[3:]
    )
    return bytes(batch)


class MemoryChunk:
    """The five files of a chunk as bytes."""

    def __init__(self, chunk=0, base_offset=0):
        self.chunk = chunk
        self.files = {".meta": bytearray(), ".data": bytearray(), ".desc": bytearray(), ".idx": bytearray()}
        self.files[".crc"] = bytearray(encode_header(SidecarHeader(chunk, base_offset, UUID)))
        self.ends = ChunkEnds()
        self.next_offset = base_offset
        self.entries = []

    def append(self, events, **header):
        batch = decode_event_batch(
            batch_bytes(events, base_offset=self.next_offset, **header), event_bytes_max=EVENT_BYTES_MAX
        )
        index = encode_index(self.ends, batch.metadata_sizes, batch.data_sizes)
        descriptors = encode_descriptors(self.chunk, self.ends, batch.data_sizes)
        entry = entry_of(batch, self.ends, index, descriptors)
        for suffix, data in (
            (".meta", batch.metadata),
            (".data", batch.data),
            (".desc", descriptors),
            (".idx", index),
            (".crc", encode_entry(entry)),
        ):
            self.files[suffix] += data
        self.entries.append(entry)
        self.ends, self.next_offset = entry.ends, entry.next_offset
        return entry

    def recovery_files(self):
        files = {suffix: bytes(data) for suffix, data in self.files.items()}
        return ChunkFiles(files[".crc"], files[".idx"], lambda suffix, start, end: files[suffix][start:end])

"""A partition's chunks over the production disk, without a log: whole batches in order, rotated when full."""

from millstream.format.events import ChunkLimits
from millstream.format.names import parse_segment, segment_name
from millstream.storage.chunks import ChunkDisk, ChunkReads
from millstream.storage.directories import make_directories_durably


class ChunkLog:
    """``directory`` has the name of a partition of an event topic."""

    def __init__(self, disk, directory, limits=None, open_files_max=64):
        self.limits = limits or ChunkLimits()
        self.directory = directory
        self.disk = ChunkDisk(disk)
        make_directories_durably(self.disk, directory, 2)
        self.disk.files.set_capacity(directory, open_files_max)
        names = sorted(name for name in self.disk.list(directory) if parse_segment(name))
        self.segments = [self.disk.segment(f"{directory}/{name}") for name in names]
        self.chunks = [one.chunk for one in self.segments]
        self.reads = ChunkReads(self.disk.files, self.chunks)

    @property
    def start_offset(self):
        return self.chunks[0].base_offset if self.chunks else 0

    @property
    def next_offset(self):
        return self.chunks[-1].next_offset if self.chunks else 0

    def append(self, batch):
        if not self.chunks or self.limits.full(self.chunks[-1].ends):
            path = f"{self.directory}/{segment_name(self.next_offset)}"
            self.segments.append(self.disk.segment(path, create=True))
            self.chunks.append(self.segments[-1].chunk)
        active = self.segments[-1]
        assert active.write([batch], active.size_bytes) == len(batch)

    def sync(self):
        for one in self.segments:
            one.sync()
        self.disk.sync_directory(self.directory)

    def close(self):
        self.disk.files.close()

"""A broker whose partitions are restored from the object store."""

from crc32c import crc32c
from sharing_support import A, batches

from millstream.format.wal_entry import EntryPart, encode_entry
from millstream.storage.disk import SystemDisk
from millstream.storage.log.opening import load_log
from millstream.tiers.object_wal import ObjectWal
from millstream.tiers.packing import archive_id
from millstream.tiers.restoring import StoreView, restore
from millstream.tiers.wal_lives import begin_life


class Life:
    """A life of a broker with one shard."""

    def __init__(self, store, node=1, disk="d"):
        self.store = store
        self.writer = begin_life(store, node, disk, 1)
        self.wal = ObjectWal(store, self.writer)

    def append(self, *parts, start=0):
        """An entry of (partition, first offset, batches)."""
        data = [batches(first, count) for _, first, count in parts]
        made = [
            EntryPart(partition, first, first + 2 * count, start, len(one), crc32c(one))
            for (partition, first, count), one in zip(parts, data, strict=True)
        ]
        return self.wal.append(encode_entry(made, data))


def restored(store, tmp_path, partition=A):
    """What is restored, and the log that opens from it: state, first and last offset, bytes of the segments."""
    directory = tmp_path / "topics" / "t" / "0"
    found = restore(StoreView(store), SystemDisk(), archive_id(partition), str(directory), 5)
    if found is None:
        assert not directory.exists()
        return None
    repairs = []
    loaded = load_log(SystemDisk(), str(directory), 5, lambda *what: repairs.append(what))
    assert not repairs
    data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    return found, loaded, data

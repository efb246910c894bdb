"""An unexpected exception in the archive process is the fault of one command, and the process goes on."""

import pytest
from numbered_segments import OWNER, numbered

from millstream.model.error_code import ErrorCode
from millstream.storage.disk import SystemDisk
from millstream.tiers.messages import AppendEntry, Done, Failed, Put, Read, Target
from millstream.tiers.process import ArchiveWorker, answer
from sim.engine.objects import MemoryStore


class Odd(MemoryStore):
    """Raises what no store should, for some keys."""

    def get(self, key, start, end):
        raise KeyError(key)


def test_an_unexpected_exception_fails_its_command_and_no_other(capfd):
    store = Odd()
    worker = ArchiveWorker(store, store, SystemDisk(), memoryview(bytearray(4096)), 1e12)
    read = Read(1, OWNER, Target.of(numbered(1)[0]), 0, 10, 100, True, [0, 4096])
    for _ in range(2):
        reply = answer(lambda: worker, read)
        assert isinstance(reply, Failed)
        assert (reply.id, reply.code) == (1, ErrorCode.KAFKA_STORAGE_ERROR)
        assert "Read failed: KeyError" in reply.message
    assert answer(lambda: worker, Put(2, "a/b", b"x")) == Done(2)
    assert not worker.reader._under_way
    said = capfd.readouterr().err
    assert "should not happen" in said
    assert "KeyError" in said, "the stack"


def test_the_log_in_the_store_is_of_all_partitions_and_has_no_boundary():
    store = MemoryStore()
    worker = ArchiveWorker(store, store, SystemDisk(), memoryview(bytearray(16)), 1e12)
    with pytest.raises(KeyError):  # there is no log here
        answer(lambda: worker, AppendEntry(1, 0, []))

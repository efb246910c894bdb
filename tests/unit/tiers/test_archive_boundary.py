"""An unexpected exception in the archive process is the fault of one command, and the process goes on."""

import pytest
from numbered_segments import OWNER, numbered

from millstream.model.error_code import ErrorCode
from millstream.storage.disk import SystemDisk
from millstream.tiers.log_worker import LogWorker
from millstream.tiers.messages import AppendEntry, Done, Failed, Put, Read, Target
from millstream.tiers.process import ArchiveWorker, answer
from millstream.tiers.wal_lives import begin_life
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
    assert not worker.reader._fetches._running
    said = capfd.readouterr().err
    assert "should not happen" in said
    assert "KeyError" in said, "the stack"


class Once(MemoryStore):
    """Raises what no store should, the first time that an entry is written."""

    tries = 0

    def put(self, key, parts, expect=None):
        self.tries += key.startswith("wal/") and "lives" not in key
        if self.tries == 1 and key.startswith("wal/") and "lives" not in key:
            raise KeyError(key)
        return super().put(key, parts, expect)


def test_an_entry_that_raises_is_sent_again_and_is_there_once():
    store = Once()
    writer = begin_life(store, 1, "d", 1)
    log = LogWorker(store, store, SystemDisk(), memoryview(bytearray(16)), writer, 0)
    worker = ArchiveWorker(store, store, SystemDisk(), memoryview(bytearray(16)), 1e12, log=log)
    failed = answer(lambda: worker, AppendEntry(1, 0, []))
    assert isinstance(failed, Failed) and failed.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert answer(lambda: worker, AppendEntry(2, 0, [])) == Done(2)
    assert answer(lambda: worker, AppendEntry(3, 1, [])) == Done(3)
    with pytest.raises(AssertionError):
        answer(lambda: worker, AppendEntry(4, 7, []))

"""A shard hook (``internal.shard.hook``) that kills the whole broker at one named step of the archive.

The file that ``MILLSTREAM_KILL_AT`` names has the step. Whoever reaches it removes the file and sends SIGKILL to every
process of the broker, so that the next start runs on.
"""

import os
import signal
from pathlib import Path

from millstream.objects.local import LocalStore
from millstream.objects.remote import RemoteStore
from millstream.storage.log.log import Log
from millstream.tiers.archiver import Archiver
from millstream.tiers.partition_archive import PartitionArchive

STEPS = (
    "before the first byte of a segment",
    "within a segment",
    "before the answer to an upload",
    "before the proposal",
    "after the proposal",
    "after the commit",
    "before the manifest",
    "after the manifest",
    "before local copies go",
)


def kill_at_step(node):
    _ = node
    settle, propose = Archiver._settle_uploads, PartitionArchive.propose
    apply, trim_local = PartitionArchive._apply, Log.trim_local

    def settled(self, archive):
        if archive.uploads and archive.uploads[0].result is not None and not archive.uploads[0].is_proposed:
            _step("before the proposal")
        settle(self, archive)

    def proposed(self, entry):
        propose(self, entry)
        _step("after the proposal")

    def applied(self, entry):
        apply(self, entry)
        _step("after the commit")

    def trimmed(self, offset):
        after = trim_local(self, offset)

        def drop():
            _step("before local copies go")
            after()

        return drop

    for store in (LocalStore, RemoteStore):
        _watch_uploads(store)
    Archiver._settle_uploads, PartitionArchive.propose = settled, proposed
    PartitionArchive._apply, Log.trim_local = applied, trimmed


def _watch_uploads(store):
    put, put_stream = store.put, store.put_stream

    def streamed(self, key, parts):
        if not key.endswith(".segment"):
            return put_stream(self, key, parts)
        _step("before the first byte of a segment")

        def passed():
            for part in parts:
                yield part
                _step("within a segment")

        found = put_stream(self, key, passed())
        _step("before the answer to an upload")
        return found

    def written(self, key, parts, *expect):
        is_manifest = key.endswith("/manifest")
        if is_manifest:
            _step("before the manifest")
        found = put(self, key, parts, *expect)
        if is_manifest:
            _step("after the manifest")
        return found

    store.put, store.put_stream = written, streamed


def _step(name):
    path = Path(os.environ["MILLSTREAM_KILL_AT"])
    if path.exists() and path.read_text() == name:
        path.unlink()
        os.killpg(os.getpgrp(), signal.SIGKILL)

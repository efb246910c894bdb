"""A shard hook (``internal.shard.hook``) that kills the whole broker at one named step of the archive.

The file that ``MILLSTREAM_KILL_AT`` names has the step. Whoever reaches it removes the file and sends SIGKILL to every
process of the broker, so that the next start runs on. ``watch_commits`` has the steps that shared objects go through as
well (``shared_kill_hook``).
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
    settle = Archiver._settle_uploads

    def settled(self, archive):
        if (
            archive.uploads.pending
            and archive.uploads.pending[0].result is not None
            and not archive.uploads.pending[0].is_proposed
        ):
            step("before the proposal")
        settle(self, archive)

    for store in (LocalStore, RemoteStore):
        _watch_uploads(store)
    Archiver._settle_uploads = settled
    watch_commits("after the proposal")


def watch_commits(after_proposal):
    """Stop at the steps of an entry from its proposal on; ``after_proposal`` names the first."""
    propose, apply, trim_local = PartitionArchive.propose, PartitionArchive._apply, Log.trim_local

    def proposed(self, entry):
        propose(self, entry)
        step(after_proposal)

    def applied(self, entry):
        apply(self, entry)
        step("after the commit")

    def trimmed(self, offset):
        after = trim_local(self, offset)

        def drop():
            step("before local copies go")
            after()

        return drop

    PartitionArchive.propose, PartitionArchive._apply, Log.trim_local = proposed, applied, trimmed


def _watch_uploads(store):
    put, put_stream = store.put, store.put_stream

    def streamed(self, key, parts):
        if not key.endswith(".segment"):
            return put_stream(self, key, parts)
        step("before the first byte of a segment")

        def passed():
            for part in parts:
                yield part
                step("within a segment")

        found = put_stream(self, key, passed())
        step("before the answer to an upload")
        return found

    def written(self, key, parts, *expect):
        is_manifest = key.endswith("/manifest")
        if is_manifest:
            step("before the manifest")
        found = put(self, key, parts, *expect)
        if is_manifest:
            step("after the manifest")
        return found

    store.put, store.put_stream = written, streamed


def step(name):
    path = Path(os.environ["MILLSTREAM_KILL_AT"])
    if path.exists() and path.read_text() == name:
        path.unlink()
        os.killpg(os.getpgrp(), signal.SIGKILL)

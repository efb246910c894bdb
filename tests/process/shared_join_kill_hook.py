"""A shard hook (``internal.shard.hook``) that kills the whole broker at one named step of a join of shared ranges.

The file that ``MILLSTREAM_KILL_AT`` names has the step, as in ``archive_kill_hook``.
"""

from archive_kill_hook import step

from millstream.format.archive import Replaced
from millstream.objects.local import LocalStore
from millstream.tiers.partition_archive import PartitionArchive
from millstream.tiers.shared_joins import SharedJoins

STEPS = (
    "before the first byte of an object",
    "within an object",
    "before the answer",
    "before the replacement",
    "after the proposal",
    "after the commit",
    "before the manifest",
    "after the manifest",
    "before shared objects go",
    "after shared objects went",
)


def kill_at_step(node):
    _ = node
    put, put_stream, delete = LocalStore.put, LocalStore.put_stream, LocalStore.delete
    written, propose, apply = SharedJoins._written, PartitionArchive.propose, PartitionArchive._apply

    def streamed(self, key, parts):
        step("before the first byte of an object")

        def passed():
            for part in parts:
                yield part
                step("within an object")

        found = put_stream(self, key, passed())
        step("before the answer")
        return found

    def put_one(self, key, parts, *expect):
        is_manifest = key.endswith("/manifest")
        if is_manifest:
            step("before the manifest")
        found = put(self, key, parts, *expect)
        if is_manifest:
            step("after the manifest")
        return found

    def heard(self, key, archive, target, result):
        step("before the replacement")
        written(self, key, archive, target, result)

    def proposed(self, entry):
        propose(self, entry)
        if isinstance(entry, Replaced):
            step("after the proposal")

    def applied(self, entry):
        apply(self, entry)
        if isinstance(entry, Replaced):
            step("after the commit")

    def deleted(self, keys):
        goes = any(key.startswith("shared/") for key in keys)
        if goes:
            step("before shared objects go")
        delete(self, keys)
        if goes:
            step("after shared objects went")

    LocalStore.put, LocalStore.put_stream, LocalStore.delete = put_one, streamed, deleted
    SharedJoins._written, PartitionArchive.propose, PartitionArchive._apply = heard, proposed, applied

"""A shard hook (``internal.shard.hook``) that kills the whole broker at one named step of a shared object.

The file that ``MILLSTREAM_KILL_AT`` names has the step, as in ``archive_kill_hook``.
"""

from archive_kill_hook import _step

from millstream.storage.log.log import Log
from millstream.tiers import packing
from millstream.tiers.partition_archive import PartitionArchive
from millstream.tiers.shared_uploads import SharedUploads

STEPS = (
    "before the object",
    "before the verification",
    "after the verification",
    "before the first entry",
    "between two entries",
    "after the commit",
    "before local copies go",
)


def kill_at_step(node):
    _ = node
    store, verify = packing.store_object, packing.verify_object
    answered, propose = SharedUploads._answered, PartitionArchive.propose
    apply, trim_local = PartitionArchive._apply, Log.trim_local

    def stored(*arguments):
        _step("before the object")
        store(*arguments)

    def verified(*arguments):
        _step("before the verification")
        verify(*arguments)
        _step("after the verification")

    def heard(self, one, result):
        if isinstance(result, list):
            _step("before the first entry")
        answered(self, one, result)

    def proposed(self, entry):
        propose(self, entry)
        _step("between two entries")

    def applied(self, entry):
        apply(self, entry)
        _step("after the commit")

    def trimmed(self, offset):
        after = trim_local(self, offset)

        def drop():
            _step("before local copies go")
            after()

        return drop

    packing.store_object, packing.verify_object = stored, verified
    SharedUploads._answered, PartitionArchive.propose = heard, proposed
    PartitionArchive._apply, Log.trim_local = applied, trimmed

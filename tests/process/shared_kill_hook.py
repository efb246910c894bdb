"""A shard hook (``internal.shard.hook``) that kills the whole broker at one named step of a shared object.

The file that ``MILLSTREAM_KILL_AT`` names has the step, as in ``archive_kill_hook``.
"""

from archive_kill_hook import step, watch_commits

from millstream.tiers import packing
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
    answered = SharedUploads._answered

    def stored(*arguments):
        step("before the object")
        store(*arguments)

    def verified(*arguments):
        step("before the verification")
        verify(*arguments)
        step("after the verification")

    def heard(self, one, result):
        if isinstance(result, list):
            step("before the first entry")
        answered(self, one, result)

    packing.store_object, packing.verify_object = stored, verified
    SharedUploads._answered = heard
    watch_commits("between two entries")

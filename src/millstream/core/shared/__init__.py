"""Decisions of shared storage. Pure: the caller gives every time, moves the bytes and keeps the state durable.

::

    backlog      on a broker: what is not uploaded; when to upload, what goes into one object; when producers wait
    uploads      on a broker: several uploads at once, commits strictly in order
    joins        on a broker: which small ranges of a partition become an object of its own, and when

What is absent: bytes in the store (``tiers.shared_objects``, ``tiers.object_wal``). The backlog and the uploads serve
``tiers.shared_uploads``, the joins ``tiers.shared_joins``. Each partition's group commits the result.
"""

from millstream.core.shared.backlog import Backlog, BacklogLimits, Pack
from millstream.core.shared.joins import Join, JoinLimits, Stretch, next_join
from millstream.core.shared.uploads import Upload, Uploads

__all__ = [
    "Backlog",
    "BacklogLimits",
    "Join",
    "JoinLimits",
    "Pack",
    "Stretch",
    "Upload",
    "Uploads",
    "next_join",
]

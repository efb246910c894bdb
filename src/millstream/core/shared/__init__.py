"""Decisions of shared storage. Pure: the caller gives every time, moves the bytes and keeps the state durable.

::

    backlog      on a broker: what is not uploaded; when to upload, what goes into one object; when producers wait
    uploads      on a broker: several uploads at once, commits strictly in order
    joins        on a broker: which small ranges of a partition become an object of its own, and when
    catalogue    on the controller: who leads, what is committed in which object, what may be deleted

What is absent: bytes in the store (``tiers.shared_objects``, ``tiers.object_wal``). Brokers use the backlog and the
uploads (``tiers.shared_uploads``), and the joins (``tiers.shared_joins``); each partition's group commits the result.
The catalogue and the object write-ahead log are for brokers without a disk, which no broker is yet; the simulation runs
them.
"""

from millstream.core.shared.backlog import Backlog, BacklogLimits, Pack
from millstream.core.shared.catalogue import Catalogue, Commit, Placed
from millstream.core.shared.joins import Join, JoinLimits, Stretch, next_join
from millstream.core.shared.uploads import Upload, Uploads

__all__ = [
    "Backlog",
    "BacklogLimits",
    "Catalogue",
    "Commit",
    "Join",
    "JoinLimits",
    "Pack",
    "Placed",
    "Stretch",
    "Upload",
    "Uploads",
    "next_join",
]

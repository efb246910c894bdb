"""Decisions of shared storage. Pure: the caller gives every time, moves the bytes and keeps the state durable.

::

    backlog      on a broker: what is not uploaded; when to upload, what goes into one object; when producers wait
    uploads      on a broker: several uploads at once, commits strictly in order
    catalogue    on the controller: who leads, what is committed in which object, what may be deleted

What is absent: bytes in the store (``tiers.shared_objects``, ``tiers.object_wal``). Brokers use the backlog and the
uploads (``tiers.shared_uploads``); what is uploaded is committed by the group of each partition. The catalogue and the
object write-ahead log are for brokers without a disk, which no broker is yet; the simulation runs them.
"""

from millstream.core.shared.backlog import Backlog, BacklogLimits, Pack
from millstream.core.shared.catalogue import Catalogue, Commit, Placed
from millstream.core.shared.uploads import Upload, Uploads

__all__ = ["Backlog", "BacklogLimits", "Catalogue", "Commit", "Pack", "Placed", "Upload", "Uploads"]

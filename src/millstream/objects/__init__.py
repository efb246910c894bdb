"""Object stores: one small protocol over a local directory, S3, Google Cloud Storage and Azure Blob Storage.

::

    open_store(url)  ─►  Retrying( LocalStore | RemoteStore )      each is an ObjectStore
                         │
                         └ retries within a budget, waits when the store throttles, settles unknown outcomes

    Hedging(store)   asks a second time for a read that is late (``objects.hedging``)

Callers see whole objects and exact ranges, versions for compare-and-set, and the errors of ``objects.errors``. Every
call blocks; a reactor never makes one. The conformance suite in the tests holds all stores to the same behaviour.

What the room promises: an object that ``put`` acknowledged is durable, whole and visible to every later call. A failed
or interrupted ``put`` leaves the old object or the new one, and never a mixture.

What is absent: what is in an object and when it is uploaded (``tiers``), caches, processes.
"""

from millstream.objects.errors import Conflict, Denied, NotFound, ShortRead, Throttled
from millstream.objects.opening import check_store, open_store
from millstream.objects.retrying import Retrying
from millstream.objects.store import ABSENT, ObjectInfo, ObjectKey, ObjectStore, Version
from millstream.objects.url import StoreUrl, parse_url

__all__ = [
    "ABSENT",
    "Conflict",
    "Denied",
    "NotFound",
    "ObjectInfo",
    "ObjectKey",
    "ObjectStore",
    "Retrying",
    "ShortRead",
    "StoreUrl",
    "Throttled",
    "Version",
    "check_store",
    "open_store",
    "parse_url",
]

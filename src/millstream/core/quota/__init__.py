"""Quotas: who is limited, how much a client may use, how long it has to wait (KIP-13, KIP-124, KIP-257, KIP-599).

::

    quotas of the cluster ──► Limits.bound(kind, user, client id) ──► who shares the quota, and its bound
                                                                          │
    bytes, time ──► Usage.record ──► WindowedRate ──► throttle time ◄─────┘
    mutations ────► TokenBucket ───► throttle time

Decisions only: no clock, no sockets. A caller passes the time.
"""

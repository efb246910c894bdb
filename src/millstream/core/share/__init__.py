"""Decisions about share groups (KIP-932): one partition of a log, whose records many consumers take one by one.

::

    batches     states of ranges of offsets, as they are stored, and how two reports of them are merged
    runs        the same ranges while the partition is served: who holds them, and until when
    partition   the share partition on the shard that leads its log: acquire, acknowledge, release
    stored      the share partitions of one partition of ``__share_group_state``, as their coordinator keeps them

What is absent: reading logs, sessions, clocks, the wire.
"""

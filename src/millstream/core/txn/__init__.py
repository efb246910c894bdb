"""Transactions: what a partition knows of them, and what their coordinator decides (KIP-98, KIP-447, KIP-890).

``partition_state`` follows the transactions of one partition along its log: where each open one started, which were
aborted, and so how far a read_committed consumer may read. ``coordinator`` decides about transactional ids: ``state``
and ``transaction`` are what it knows of each, ``messages`` what goes in and comes out.

Pure: no clock, no file, no log.
"""

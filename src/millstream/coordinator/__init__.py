"""Coordination on this broker: the shells that run ``core.group`` and ``core.txn`` and store their records in
``__consumer_offsets`` and ``__transaction_state``.

``hashing`` decides which partition stores a group, ``records`` how it is stored. ``groups_partition`` runs the groups
of one partition on its home shard, ``local_groups`` all groups of a shard. ``router`` is the interface for handlers on
any shard. ``transactions`` is that interface for transactional ids, ``transactions_partition`` runs those of one
partition, ``marker_sender`` ends decided transactions in their partitions, ``verified_commits`` asks about a
transaction before offsets become part of it. ``state_partition`` is what both shells share, ``state_topic`` finds their
topics, ``log_replay`` reads a partition from its start.
"""

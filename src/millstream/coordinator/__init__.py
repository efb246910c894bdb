"""Coordination on this broker: the shells that run ``core.group``, ``core.txn`` and ``core.share``, and store their
records in ``__consumer_offsets``, ``__transaction_state`` and ``__share_group_state``.

================================  ====================  ==========================  =========================
For handlers on any shard         ``router``            ``transactions``            ``share_states``
One partition, on its home shard  ``groups_partition``  ``transactions_partition``  ``share_state_partition``
Its records                       ``records``           ``transaction_records``     ``share_state_records``
================================  ====================  ==========================  =========================

``state_partition`` is what the three in the second row have in common, ``state_topic`` finds or makes their topics,
``log_replay`` reads a partition from its start. ``local_groups`` has the groups of a shard, ``hashing`` says which
partition stores a group, ``finding`` which broker coordinates it. ``marker_sender`` writes the markers of decided
transactions, ``verified_commits`` asks about a transaction before offsets become part of it.
"""

"""Group coordination on this broker: the shell that runs ``core.group`` and stores its records in
``__consumer_offsets``.

``hashing`` decides which partition stores a group, ``records`` how it is stored. ``groups_partition`` runs the groups
of one partition on its home shard, ``local_groups`` all groups of a shard. ``router`` is the interface for handlers on
any shard.
"""

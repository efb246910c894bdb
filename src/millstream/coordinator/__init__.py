"""Group coordination on this broker: the shells that feed ``core.group`` and keep its records in
``__consumer_offsets``.

``hashing`` says which partition keeps a group, ``records`` how it is kept, ``groups_partition`` runs the groups of one
partition on its home shard, ``local_groups`` all of a shard's, and ``router`` is what handlers call on any shard.
"""

"""Raft groups on their home shard: what gives the pure `core.raft` a log, a network and time.

`group` is what partitions and the controller know. `sole_voter` is the group of a single node.
"""

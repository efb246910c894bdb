"""Raft groups on their home shard: what gives the pure `core.raft` a log, a network and time.

`group` is what partitions and the controller know. `sole_voter` is the group of a single node; `replicated` the group
of several voters, and `shard` all of those on one shard: it gets what arrives, and sends by `transport`. `writes` are
the core's decisions on their way into the log, `saving` its term and vote, `arriving` appends of a leader before the
core sees them, `sending` entries on their way to a peer, `installing` files in place of entries, `reads` the barriers
of reads, `stored` the bytes of control entries.
"""

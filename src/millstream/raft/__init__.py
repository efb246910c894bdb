"""Raft groups on their home shard: the host loop around ``core.raft``."""

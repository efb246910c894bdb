"""Requests between shards: what a shard needs of partitions whose home is another."""

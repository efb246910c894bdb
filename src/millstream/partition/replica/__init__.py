"""Partitions with several replicas: who is in sync, how a replica changes, and what replaces damaged files."""

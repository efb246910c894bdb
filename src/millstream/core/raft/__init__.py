"""Raft's decisions for one group, without any I/O."""

"""Raft's decisions for one group, without any I/O.

Two pages are the contract with the outside: `messages` (what replicas say to each other) and `ready` (what the shell
tells the core, and what the core tells the shell to do). The page of `raft` lists the other files.
"""

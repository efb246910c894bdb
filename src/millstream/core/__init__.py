"""Decisions without effects: no clock, no randomness, no file, no socket, no log line.

A caller passes the time and what has happened, and carries out what is decided. ``raft``, ``controller``, ``group``,
``txn`` and ``share`` are one state machine each; the rooms that run them are ``raft``, ``cluster``, ``coordinator``
and ``share``. They do not know each other. The rest is rules: who may do what (``access``), how much (``quota``), and
what is kept (``retention``, ``compaction``, ``eviction``).
"""

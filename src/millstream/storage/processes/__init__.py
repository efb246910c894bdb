"""The processes beside a shard: the writer (WAL), the worker (files that may block), the cleaner (compaction).

``helpers`` forks them before the shard's reactor exists; ``writer``, ``worker`` and ``cleaner_process`` are their main
loops; ``inspector`` opens batches in the worker and ``inspections`` is its counterpart on the reactor. The room
promises: a process ends with its shard and the shard with it, with the reason; a failure of the disk travels back as a
value.

What is absent: what is done to the files (``storage.segments``, ``storage.compaction``, ``storage.wal``).
"""

"""The processes beside a shard: the writer (WAL), the worker (files that may block), the cleaner (compaction).

``start`` forks them before the shard's reactor exists. ``writer``, ``worker`` and ``cleaner_process`` are their main
loops. ``inspector``, ``event_reader`` and ``receiving`` are parts of the worker; ``inspections`` is the reactor's
counterpart of ``inspector``. The room promises: a process ends with its shard, and the shard ends with the process and
reports the reason. A disk error is a value in a reply.

What is absent: what is done to the files (``storage.segments``, ``storage.compaction``, ``storage.wal``).
"""

"""Log compaction: which log is compacted next (``compaction``, on the reactor) and how (``cleaner``, in its process).

The room promises: a crash at any point leaves each log as before or after one replaced group of segments. What is not
committed is not compacted. Work is paced; a busy shard delays compaction and not the other way round.

What is absent: the decision which record survives (``core.compaction``), retention by time and size
(``storage.maintenance``).
"""

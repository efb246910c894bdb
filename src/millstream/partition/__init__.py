"""The facade over a partition: append, read, watermarks, waiters. Nothing above this layer knows segments or Raft.

``partition`` is one on its home shard, ``table`` finds it, ``lifecycle`` opens and closes it. The verbs are in
folders: ``append``, ``read``, ``events`` (event topics), ``replica`` (what the leader and the followers do beside),
and ``hop`` (the same from another shard). ``boundary`` is where an exception ends one partition and nothing else.
"""

"""Recovery: what the write-ahead logs of an earlier run still hold goes into the segments before anything is served.

Runs once in a process of the supervisor, before the shards start. The room promises: every durable batch is in its
segment afterwards; a torn tail is cut; damage inside the durable part stops the start with the file and byte in the
message. Running recovery twice, or crashing in it, changes nothing.

What is absent: opening logs for use (``storage.log.opening``), repair from another replica.
"""

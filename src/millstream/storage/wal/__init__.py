"""The write-ahead log of a shard: the only place where an append becomes durable.

One tick gathers what all logs of the shard append in a turn of the reactor. The writer process stores a tick as one
frame with one sync. The room promises: a completion is reported only after the sync that covers it, and in order. A
failed write or sync stops the shard; it is never reported as success. Frames are reused only after a checkpoint has
made their content durable elsewhere and both copies of the ``state`` file say so.

``wal`` gathers ticks, ``ticks`` is the shared memory to the writer, ``files`` picks the file for the next frame,
``pace`` says when the next tick may start, ``state`` and ``reading`` are for recovery.

What is absent: the writer process itself (``storage.processes``), the frame format (``format.wal``), segment files.
"""

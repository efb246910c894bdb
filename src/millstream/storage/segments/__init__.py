"""Segment files as the processes that may block see them: written, cut, removed, synced, indexed, read.

The worker and recovery use this room; the reactor sends commands instead. The room promises: every batch that is read
matched its CRC-32C in the bytes just read; a file counts as durable only after its sync; index entries never speak of
segment bytes that are not durable. What is damaged or missing is a ``Fault`` that names file, byte and offset.

What is absent: the file formats (``format.segment``, ``format.index``), the choice of what to write (``storage.log``)
and when to sync (``storage.maintenance``).
"""

"""One partition's log as its shard sees it: append at the end, read at any offset, trim and truncate.

The newest bytes are in the log cache (``cache``), older ones in segment files that the worker reads (``cold_reads``).
``log`` is the log itself; ``placing``, ``cutting``, ``write_behind``, ``timestamps`` and ``header_replay`` are its
verbs. ``entries``, ``entry_reads`` and ``recovered`` are the side of a replicated group: what a leader sends, what it
reads to send, and what a core is built from; ``exporting`` and ``importing`` are a whole log on its way to a replica
that can't be sent its entries. ``opening`` reads what the files of a partition say; ``segment_list`` and
``snapshots`` are its records.

The room promises: offsets are dense and given once; an append that is refused changes nothing; a read returns whole
batches whose checksums were checked. A crash loses what was not durable and nothing else.

What is absent: system calls that may block the reactor after the log is open (the worker makes them), checkpoints and
retention (``storage.maintenance``), and any knowledge of clients.
"""

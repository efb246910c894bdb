"""The logs of one shard on disk and in memory. Knows offsets and batches; knows no Kafka request and no topic name.

The rooms, from the top down; a room imports only rooms below it::

    shard_storage                                the composition: one shard's logs, WAL, cache, helper processes
    processes                                    writer, worker and cleaner: processes beside the shard
    maintenance │ compaction │ recovery │ verification
    log                                          one partition's log: append, read, trim, truncate
    segments                                     segment files: write, read, index
    chunks                                       chunk files of event topics, as segments of their logs
    wal                                          the write-ahead log: group commit, files, state
    messages                                     what the shard and its helper processes send to each other
    disk, and three small modules beside it      the seam for files, and what every room does with files

What the package promises: a log's durable end moves only after the sync that covers it. After a crash at any point the
next start finds every durable batch, once, in order. Damage is reported; it is never cut away silently.

What is absent: replication (``raft``), high watermarks and producer state (``partition``), object storage.
"""

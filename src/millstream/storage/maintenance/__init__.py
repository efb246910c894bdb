"""What a shard does to its logs from time to time: checkpoints, retention, sealing old segments, removing directories.

The room promises: work is spread so that no client waits for it. A checkpoint frees frames of the write-ahead log only
after everything in them is durable in the segments. Files are removed only after the change that drops them is durable.

What is absent: the retention decision (``core.retention``), compaction (``storage.compaction``).
"""

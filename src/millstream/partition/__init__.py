"""The facade over a partition: append, read, watermarks, waiters. Nothing above this layer knows segments or Raft."""

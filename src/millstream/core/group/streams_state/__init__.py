"""The state of a streams group (KIP-1071), and questions about it.

Reading order: ``tasks`` (sets of tasks), ``topology`` (what the application reads and writes), ``configured`` (the
topology on the topics that exist), ``member`` and ``group`` (stored data, as the sum of its records), ``offsets`` (who
may commit and fetch). Absent: requests, writes, timers that fire. Those are in ``streams``.
"""

"""The state of a share group (KIP-932), and questions about it.

``member`` and ``group`` are stored data, as the sum of its records; ``states`` says for which partitions the share
state exists. Absent: requests, writes, timers that fire. Those are in ``share``.
"""

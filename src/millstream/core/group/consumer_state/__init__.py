"""The state of a group with the consumer protocol (KIP-848), and questions about it.

Reading order: ``topics`` (the view of the cluster), ``member`` and ``group`` (stored data, as the sum of its records),
``offsets`` (who may commit and fetch). Absent: requests, writes, timers that fire. Those are in ``consumer``.
"""

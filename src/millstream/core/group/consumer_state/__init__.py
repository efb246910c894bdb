"""The state of a group with the consumer protocol (KIP-848), over ``assigned_state``, and questions about it.

Absent: requests, writes, timers that fire. Those are in ``consumer``.
"""

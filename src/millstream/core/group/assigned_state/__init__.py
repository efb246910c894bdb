"""A group whose members the coordinator assigns, as the sum of its records: ``member`` and ``group``.

Absent: requests, writes, timers that fire. Those are in ``assigned``.
"""

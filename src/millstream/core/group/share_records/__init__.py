"""The state of a share group (KIP-932), over ``assigned_state``, and questions about it.

``states`` says for which partitions the share state exists. Absent: requests, writes, timers that fire. Those are in
``share``.
"""

"""The state of a streams group (KIP-1071), over ``assigned_state``, and questions about it.

Reading order: ``tasks`` (sets of tasks), ``topology`` (what the application reads and writes), ``configured`` (the
topology on the topics that exist), ``member`` and ``group``. Absent: requests, writes, timers that fire. Those are in
``streams``.
"""

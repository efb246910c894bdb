"""What consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071) have in common.

The coordinator assigns their members, and one heartbeat carries everything. Reading order: ``change`` (how records are
written), ``timers`` (the deadlines of members), ``target`` (the group epoch and the target assignment), ``leaving``,
``requests`` (from the request to the change, and from the log). What each type of group does in its own way is in
``consumer``, ``share`` and ``streams``. The data are in ``assigned_state``.
"""

"""Share groups (KIP-932), as far as they differ from other groups of ``assigned``.

Reading order: ``target`` (when the target is computed), ``initialize`` (how the share state of new partitions comes
into being), then the requests: ``heartbeat``, ``deleting``, ``offsets`` (an administrator sets or deletes them).
``requests`` is the interface for ``GroupCoordinator``. The data are in ``share_records``.
"""

"""Share groups (KIP-932): the coordinator assigns partitions, of which each may have several members.

Reading order: ``change`` (how records are written), ``target`` (when the target is computed), ``initialize`` (how the
share state of new partitions comes into being), then the requests: ``heartbeat``, ``leaving``, ``deleting``,
``offsets`` (an administrator sets or deletes them). ``requests`` is the interface for
``GroupCoordinator``. The data are in ``share_records``.
"""

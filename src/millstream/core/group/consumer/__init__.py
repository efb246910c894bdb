"""Consumer groups of the next generation (KIP-848): the coordinator assigns, one heartbeat says everything.

Read in this order: ``topics`` (what is seen of the cluster), ``member`` and ``group`` (what is remembered, each a sum
of its records), ``change`` (how it is written), ``reconcile`` (how a member gets from what it has to what it is to
have), ``target`` (when that is computed anew), then the requests: ``heartbeat``, ``leaving``, ``expressions``
(subscriptions by regular expression), ``classic`` (members that still speak the classic protocol), ``migrate`` (groups
that change their protocol), ``offsets`` (who may commit), ``describe``. ``requests`` is what ``GroupCoordinator`` calls.
"""

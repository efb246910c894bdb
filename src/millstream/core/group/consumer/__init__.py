"""Consumer groups with the consumer protocol (KIP-848), as far as they differ from other groups of ``assigned``.

Reading order: ``reconcile`` (how a member gets to its target assignment), ``target`` (when the target is computed),
then the requests: ``heartbeat``, ``leaving``, ``expressions`` (subscriptions by regular expression), ``classic``
(members with the classic protocol), ``migrate`` (groups that change their protocol), ``describe``. ``requests`` is the
interface for ``GroupCoordinator``. The data are in ``consumer_state``.
"""

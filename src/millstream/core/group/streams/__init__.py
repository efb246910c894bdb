"""Streams groups (KIP-1071), as far as they differ from other groups of ``assigned``.

Reading order: ``heartbeat``, ``topics`` (the topology on the topics that exist), ``target``, ``sticky`` and
``reconcile`` (which tasks a member gets), ``describe``. ``requests`` is the interface for ``GroupCoordinator``. The
data are in ``streams_state``.
"""

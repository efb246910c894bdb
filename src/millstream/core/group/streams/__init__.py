"""Decisions about streams groups (KIP-1071): requests, changes and deadlines, over ``streams_state``.

Reading order: ``requests`` (from the coordinator), ``heartbeat``, ``topics`` (the topology on the topics that exist),
``target`` and ``reconcile`` (which tasks a member gets), ``leaving`` and ``timers``, ``describe``.
"""

"""The controller's decisions: which topics, partitions, configurations and producer-id blocks exist, and what may
change.

Read ``commands`` (what can happen), ``state`` (what has happened), ``requests`` (what can be asked), then ``decide``.
"""

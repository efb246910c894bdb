"""Consumer groups and committed offsets: every decision, no effect.

Read in this order: ``state`` (the five states), ``member`` and ``group`` (what is remembered), ``rebalance`` (how a
group moves from one generation to the next), then the requests: ``join``, ``sync``, ``heartbeat``, ``leave``,
``commit``, ``fetch``, ``delete``; ``retention`` (what expires), ``image`` (a group as a stored record), and
``coordinator``, which holds the groups of one partition of ``__consumer_offsets`` and is the only door:
``step(input, now_us, wall_ms) -> Outputs``. Groups whose members are assigned by the coordinator are in ``consumer``.
"""

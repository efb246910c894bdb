"""Groups and committed offsets: every decision, no effect.

Reading order: ``state`` (the states), ``member`` and ``group`` (stored data), ``rebalance`` (the way from one
generation to the next), then the requests ``join``, ``sync``, ``heartbeat``, ``leave``, ``commit``, ``fetch``,
``delete``; ``retention`` (what expires), ``image`` (a group as a stored record). ``coordinator`` holds the groups of
one partition of ``__consumer_offsets`` and is the only entry point: ``step(input, now_us, wall_ms) -> Outputs``. Groups
whose members are assigned by the coordinator are in ``assigned``, and what one type of them does in its own way in
``consumer``, ``share`` and ``streams``, each with its data in a package beside it.
"""

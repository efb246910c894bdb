"""Client connections: receives frames, hands them to a handler, and sends the responses in order.

``connection`` is one, ``intake`` all of a shard, ``member`` what both know of each other. What several connections
share has a file each: memory (``budget``, ``owed``), time (``turns``), waiting requests (``parking``), clients that
are held back (``muting``) or do nothing (``stalls``).
"""

"""One process per core: how it starts (``process``), runs (``reactor``), exchanges messages with other shards
(``ring``, ``mailbox``) and is supervised (``stall``).
"""

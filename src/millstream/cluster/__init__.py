"""The cluster as one shard sees it: the controller's shell, the metadata cache, placement on cores, producer ids.

Start reading at ``controller``; what is decided, and how, is ``millstream.core.controller``.
"""

"""The cluster from the view of one shard: the controller's shell, the metadata cache, placement on cores, producer ids.

Start reading at ``controller``. ``millstream.core.controller`` has the decisions.
"""

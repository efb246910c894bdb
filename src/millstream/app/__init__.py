"""The composition root: the only package that knows every part and wires them together.

Start reading at ``broker`` (the supervisor) and ``shard_main`` (one shard). ``shared`` is what both know, made before
the fork. ``client_edge`` has a shard's clients, ``peer_shard`` its part in a cluster, ``archiving`` what it uploads.
The other files are what the supervisor does beside: it accepts connections, answers HTTP, watches disks and processes.
"""

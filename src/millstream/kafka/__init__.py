"""The Kafka edge: frames to requests, one handler a file, responses back. It knows partitions, never segments.

::

    dispatch ──► served (the table of APIs) ──► authorize ──► handlers/FOLDER/api.py ──► context.respond

``context`` is what a handler sees, ``logins`` who its client is, ``quotas`` what the client may use. ``gathering``
collects the answers of several shards, ``slices`` encodes large responses in the background.
"""

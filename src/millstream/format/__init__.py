"""File formats, bytes ↔ values. It opens no file and logs nothing.

``names`` says how files are called. ``segment`` and ``index`` are the log, ``wal`` the write-ahead log, ``epochs``,
``producers`` and ``quarantine`` the small files beside a log, ``sealed`` their common frame. ``archive``, ``manifest``
and ``segment_object`` are what the object store has of a partition, ``shared_object`` and ``wal_entry`` what it has of
many. ``events`` has the files of event topics.
"""

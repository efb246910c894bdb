"""A schema registry that speaks Confluent's REST API and keeps its state in the topic ``_schemas``.

::

    HTTP request ──► rest ──► service ──► records ──► topic (append, read back) ──► state
                        ◄── JSON ◄── answer ◄────────────────────────────────────────────┘

``model``, ``subjects``, ``records``, ``state``, ``service``, ``rest`` and the three schema formats
decide and touch nothing. ``serve`` is the shell, over ``client.compacted_topic``: a client of the broker, in a process
of its own.
Nothing here imports a broker package; the decoders of ``millstream.spark`` use the schema formats, too.
"""

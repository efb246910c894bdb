"""A topic is a table: ``millstream pipeline serve`` runs a declared pipeline for each topic with ``table.mode``.

::

    topic properties table.* ──discovery──► TopicTable ──declared──► Pipeline ──► Run (one Spark, a session for each)
                                                                                   │ commit
    console, /v1/pipelines, topic describe ◄── __pipelines (compacted) ◄── status ◄┘
    who runs it, how far behind it is      ◄── group __pipeline.TOPIC  ◄── claim

No second engine: what runs is the pipeline of a file, with its promises. Here is only what a file's author would do:
declare, start, start again what has failed, follow changes, end.

- Bad input: a topic whose properties, records or table do not fit is refused in words, which ``topic describe`` shows;
  other topics are not concerned. It is tried again with growing pauses, and at once when its properties change.
- A crash at any point, ``kill -9`` included: the next ``serve``, on this host or another one, takes the group's place
  and continues where the table's record ends. Nothing is there twice, because the table's guard refuses an older run.
- Two at once: a consumer group of one partition has one holder, and others stand by. A holder that was cut off from
  the brokers cannot commit, because it reads from them, and the guard's epoch refuses its unfinished batch.
- Overload: each topic has at most one batch at work. Batches of many topics share Spark's cores.
"""

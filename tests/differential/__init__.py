"""The same bytes to Millstream and to a real Apache Kafka, and what differs in the answers.

``make differential`` starts one broker of each kind, plays every case of ``cases/`` against both at every version of
its API, and compares what came back: error codes, shapes, effects that a following read shows, and whether the
connection was kept. Each difference must stand in ``known_differences.toml`` with its reason; any other fails the run,
and so does an entry that no longer happens. What Kafka answered is kept in ``recorded/``, so that ``make test`` holds
Millstream to it without Java.

- ``line``: a connection that sends bytes of any kind and tells an answer from silence and from a close.
- ``talk``: what a case holds: fresh names, topics and records to begin with, ``ask`` and ``look``.
- ``plain``: a decoded answer as comparable data; ids, ports, clocks and the wording of messages are taken out.
- ``odd``: an encoder that puts wrong bytes in the place of a chosen field.
- ``table``: the cases, and which of them run at which versions. ``good``: well-formed requests that cases begin with.
- ``play``: runs them. ``compare``: differences, known and new. ``recording``: Kafka's answers on disk.
- ``brokers``: the two brokers.
"""

"""The command line: ``millstream start`` and the everyday commands beside it.

One file per noun or verb. Commands that talk to a broker use confluent-kafka, reached through ``cli/connect.py`` alone,
so they work against any Kafka-compatible broker. Tables are for people, ``--json`` for programs, messages go to
stderr. An error is one sentence with the remedy: exit code 1 for what went wrong, 2 for what was typed wrong, never a
traceback.
"""

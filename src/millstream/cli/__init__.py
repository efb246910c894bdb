"""The command line: ``millstream start`` and the commands for users and administrators.

One file per noun or verb. Commands that talk to a broker use confluent-kafka, reached through ``cli/connect.py`` alone,
so they work against any Kafka-compatible broker. Tables are for people, ``--json`` for programs, messages go to stderr.
An error is one sentence with the remedy, never a traceback. Exit code 1 is a failure, 2 is wrong usage.
"""

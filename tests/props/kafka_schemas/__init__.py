"""Message schemas of Apache Kafka 4.3.1 (Apache License 2.0) without their descriptions, for kafka-python's codec.

Values of stored records have the type ``data``, which kafka-python knows, in place of ``coordinator-value``.
"""

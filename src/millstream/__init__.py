"""Millstream: a Kafka-API event-streaming store in Python."""

__version__ = "0.1.0"

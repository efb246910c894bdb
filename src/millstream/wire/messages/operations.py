"""The "authorised operations" bit field that several answers end with."""

OPERATIONS_NOT_ASKED = -(1 << 31)
"""Kafka's value when the client did not ask which operations it may perform."""

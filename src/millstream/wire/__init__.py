"""Kafka on the wire: message declarations, their codec, record batches and compression. No sockets, no state."""

"""Kafka's wire format: message declarations, their codec, record batches and compression. No sockets, no state."""

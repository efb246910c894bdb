"""The Kafka edge: frames to requests, one handler per file, responses back. It knows partitions, never segments."""

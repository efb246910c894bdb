"""The Kafka edge: frames to requests, one handler a file, answers back. It knows partitions, never segments."""

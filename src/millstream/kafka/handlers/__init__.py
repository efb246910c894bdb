"""One Kafka API per file. Each has ``handle``, and nothing that another API needs."""

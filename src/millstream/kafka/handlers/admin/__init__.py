"""APIs that change or describe topics, settings, access and brokers."""

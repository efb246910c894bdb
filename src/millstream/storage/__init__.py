"""The log on disk and in memory: write-ahead log, segments behind it, log cache, recovery. Knows no Kafka API."""

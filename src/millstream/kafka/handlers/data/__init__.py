"""APIs that produce, read, trim and describe partitions."""

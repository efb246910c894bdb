"""Event topics: what their partitions ask of a push, feeds and data of events, and events as records."""

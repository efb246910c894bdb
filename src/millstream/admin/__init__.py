"""The broker's HTTP port, served by the supervisor: metrics, and where a topic's files are."""

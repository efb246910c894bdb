"""One Kafka API a file; each holds ``handle`` and nothing that another API needs."""

"""APIs by which ``millstream backup`` reads and restores what Kafka's API does not show or take."""

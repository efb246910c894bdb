"""APIs of event topics."""

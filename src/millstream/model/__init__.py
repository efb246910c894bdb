"""Values that every layer shares: today Kafka's error codes. No behaviour lives here."""

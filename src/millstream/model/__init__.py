"""Values that every layer shares: identifiers and Kafka's error codes. No behaviour lives here."""

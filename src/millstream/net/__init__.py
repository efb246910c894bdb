"""Client connections: receives frames, hands them to a handler, and sends the responses in order."""

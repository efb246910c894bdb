"""Telemetry: ``table`` declares every metric, ``metrics`` counts, ``render`` shows, ``log`` writes log lines."""

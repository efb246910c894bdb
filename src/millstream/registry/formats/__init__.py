"""The three schema formats: what is valid, what is the same, and what can read what."""

"""Appends: from a batch that arrives to its offsets, and what a batch waits for on the way."""

"""Reads of committed batches, and searches for offsets."""

"""Decisions without effects: no clock, no randomness, no file, no socket, no log line."""

"""Checks of a data directory without a broker: every byte of its segments (``log``) and write-ahead logs (``wal``).

The room promises to change nothing and to report every byte that is not as it was promised to be, with its place.

What is absent: repair. The next start mends what can be mended; the rest needs a person.
"""

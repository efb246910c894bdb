"""Measurements of the broker, and of the peer it is measured beside; ``python -m bench.run`` is ``make bench``."""

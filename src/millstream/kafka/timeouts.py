"""The longest time that a request waits, although its client grants more.

What waits for a controller, a majority or a log start is not ended with the connection: it has been sent to other
shards or brokers. Requests of clients that grant weeks and leave would pile up.
"""

from typing import Final

TIMEOUT_MAX_MS: Final = 900_000
"""The largest ``request.timeout.ms`` that librdkafka takes; Java's default is 30 s."""


def bounded_ms(timeout_ms: int) -> int:
    """The timeout that a request names, or the longest one."""
    return min(timeout_ms, TIMEOUT_MAX_MS)

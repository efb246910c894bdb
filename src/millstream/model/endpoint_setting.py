"""How a broker tells where its HTTP port is: a read-only fact among its configurations, for any Kafka client."""

from typing import Final

HTTP_ENDPOINT: Final = "millstream.http.endpoint"
"""Its value is a URL without a path; empty for a broker without an HTTP port, unknown to an Apache Kafka."""

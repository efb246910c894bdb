"""Name of the read-only broker configuration that holds the address of the HTTP port, for any Kafka client."""

from typing import Final

HTTP_ENDPOINT: Final = "millstream.http.endpoint"
"""The value is a URL without a path. It is empty for a broker without an HTTP port; an Apache Kafka does not have
it.
"""

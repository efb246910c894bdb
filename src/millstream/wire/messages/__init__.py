"""Kafka's messages, one module per API, declared in the vocabulary of ``millstream.wire.schema``.

``millstream.wire.apis`` lists which of them make up an API; ``millstream.wire.codec`` turns them into bytes and back.
A struct is named as in Kafka's own schemas, its fields are Kafka's in snake_case.
"""

from millstream.wire.schema import Message, Request, Response

__all__ = ["Message", "Request", "Response"]

"""Creates topics over the Kafka protocol, for a broker that a test has just started."""

import socket
import struct
from collections.abc import Mapping

from millstream.client.security import PLAIN, Security, secured
from millstream.model.error_code import ErrorCode
from millstream.wire.codec import decode_response, encode_request, encode_request_header, response_header_version
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_API_KEY = 19
_VERSION = 7
_TIMEOUT_S = 120.0


def create_topics(
    bootstrap: str,
    topics: Mapping[str, int],
    config: Mapping[str, object] | None = None,
    security: Security = PLAIN,
) -> None:
    """Create ``topics`` (name → partitions), each with the topic properties ``config``.

    Raises:
        RuntimeError: a topic cannot be created; the message is the broker's.
    """
    configs = [CreatableTopicConfig(name=name, value=str(value)) for name, value in (config or {}).items()]
    host, port = bootstrap.rsplit(":", 1)
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=count, replication_factor=-1, configs=configs)
            for name, count in topics.items()
        ],
        timeout_ms=int(_TIMEOUT_S * 1000),
    )
    frame = bytes(encode_request_header(_API_KEY, _VERSION, 1, "millstream-testing")) + bytes(
        encode_request(request, _VERSION)
    )
    plain = socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_S)
    with secured(plain, host.strip("[]"), security) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)
    start = 5 if response_header_version(_API_KEY, _VERSION) else 4
    response = decode_response(_API_KEY, _VERSION, answer, start, len(answer))
    assert isinstance(response, CreateTopicsResponse)
    for topic in response.topics:
        if topic.error_code:
            raise RuntimeError(f"{topic.name}: {ErrorCode(topic.error_code).name} {topic.error_message or ''}")


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise RuntimeError("the broker closed the connection")
        data += part
    return bytes(data)

"""Listeners, connections and the limits on what they send."""

from __future__ import annotations

from millstream.config.forms import INT64_MAX, Boolean, Integer, OptionalHostPort, Text
from millstream.config.listeners import PROTOCOL_OF_NAME, Listener, Listeners, ProtocolMap
from millstream.config.property import Property

_MIB = 2**20


class NetworkProperties:
    """Where clients connect and how much of the broker one of them may take."""

    listen = Property(
        "listeners",
        Listeners(),
        (Listener("PLAINTEXT", "127.0.0.1", 9092),),
        doc="Where Kafka clients connect: one address, or several with a name each. Port 0 picks a free one, which the "
        "ready line and broker.json tell.",
        example="PLAINTEXT://127.0.0.1:9092,LAN://0.0.0.0:9093",
    )
    advertised_listeners = Property(
        "advertised.listeners",
        Listeners(lowest_port=1, optional=True),
        (),
        doc="What clients of a listener are told to connect to, where that differs from the address that they reached: "
        "behind NAT or in a container.",
        default_doc="the address that the client reached",
        example="LAN://broker-1.example.org:9093",
    )
    listener_security_protocol_map = Property(
        "listener.security.protocol.map",
        ProtocolMap(),
        PROTOCOL_OF_NAME,
        doc="The protocol that each listener speaks. This version serves PLAINTEXT.",
        example="PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT",
    )
    http_listen = Property(
        "http.listen",
        OptionalHostPort(scheme="http"),
        None,
        doc="Where /metrics and the segment manifest are served over HTTP.",
        default_doc="the listener's host and a free port",
        example="127.0.0.1:9644",
    )
    socket_request_max_bytes = Property(
        "socket.request.max.bytes",
        Integer(1024, unit="bytes"),
        100 * _MIB,
        doc="The largest request frame; a connection that announces more is closed. So is one that announces more than "
        "30 % of a shard's memory, `memory.bytes` divided by `shards`.",
    )
    socket_frame_timeout_ms = Property(
        "socket.frame.timeout.ms",
        Integer(100, unit="ms"),
        30_000,
        doc="How long a client may take from the first to the last byte of one request, whose memory is reserved all "
        "that time.",
    )
    connections_max = Property(
        "max.connections",
        Integer(1),
        20_000,
        doc="Connections at one time; a further one is closed. Apache Kafka has no limit by default.",
        live=True,
    )
    connections_max_idle_ms = Property(
        "connections.max.idle.ms",
        Integer(1_000, INT64_MAX, unit="ms"),
        600_000,
        doc="A connection without a request for this long is closed.",
    )
    fetch_max_bytes = Property(
        "fetch.max.bytes",
        Integer(1024, unit="bytes"),
        55 * _MIB,
        doc="The most that one fetch answer carries (a first batch larger than this still goes).",
    )
    fetch_session_slots = Property(
        "max.incremental.fetch.session.cache.slots",
        Integer(0),
        1_000,
        doc="Incremental fetch sessions that the broker remembers, over all shards.",
    )
    max_request_partition_size_limit = Property(
        "max.request.partition.size.limit",
        Integer(1),
        2_000,
        doc="The most partitions that one answer of DescribeTopicPartitions carries; the client asks for the rest.",
    )
    client_telemetry_topic = Property(
        "client.telemetry.topic",
        Text("the name of a topic"),
        "",
        doc="Where metrics go that clients push about themselves (KIP-714), as they were pushed. Without a topic "
        "clients are not told that they could.",
        example="client-telemetry",
    )
    telemetry_max_bytes = Property(
        "telemetry.max.bytes",
        Integer(1, unit="bytes"),
        _MIB,
        doc="The largest push of a client's metrics.",
    )
    delete_topic_enable = Property("delete.topic.enable", Boolean(), True, doc="Whether clients may delete topics.")
    auto_create_topics_enable = Property(
        "auto.create.topics.enable",
        Boolean(),
        True,
        doc="Create a topic when a client that allows it asks for one that does not exist.",
    )

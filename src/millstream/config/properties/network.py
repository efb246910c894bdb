"""Settings of listeners, connections and requests."""

from __future__ import annotations

import ipaddress

from millstream.config.forms import INT32_MAX, INT64_MAX, Boolean, Form, Integer, OptionalHostPort, Text
from millstream.config.listeners import PROTOCOL_OF_NAME, Hosts, Listener, Listeners, ProtocolMap
from millstream.config.masks import Masks
from millstream.config.property import Property

_MIB = 2**20


class AddressCounts(Form["tuple[tuple[str, int], ...]"]):
    """``ADDRESS:COUNT`` with commas."""

    def read_plain(self, text: str) -> tuple[tuple[str, int], ...]:
        found: dict[str, int] = {}
        for word in filter(None, (each.strip() for each in text.split(","))):
            address, _, count = word.rpartition(":")
            plain = ipaddress.ip_address(address.strip("[]"))
            if not count.isdecimal() or int(count) > INT32_MAX:
                raise ValueError
            found[str(getattr(plain, "ipv4_mapped", None) or plain)] = int(count)
        return tuple(found.items())

    def accepts(self, value: object) -> bool:
        return isinstance(value, tuple)

    def write(self, value: tuple[tuple[str, int], ...]) -> str | None:
        return ",".join(f"{address}:{count}" for address, count in value)

    def expected(self) -> str:
        return "addresses with counts, such as 10.0.0.7:1000,::1:50"


class NetworkProperties:
    """Listeners, and limits on connections and requests."""

    listen = Property(
        "listeners",
        Listeners(),
        (Listener("PLAINTEXT", "127.0.0.1", 9092),),
        doc="Addresses on which Kafka clients connect: one address, or several with a name each. Port 0 picks a "
        "free port, which the ready line and broker.json show.",
        example="PLAINTEXT://127.0.0.1:9092,LAN://0.0.0.0:9093",
    )
    advertised_listeners = Property(
        "advertised.listeners",
        Listeners(lowest_port=1, optional=True),
        (),
        doc="Address that clients of a listener receive, if it differs from the address that they reached: behind "
        "NAT or in a container.",
        default_doc="the address that the client reached",
        example="LAN://broker-1.example.org:9093",
    )
    listener_security_protocol_map = Property(
        "listener.security.protocol.map",
        ProtocolMap(),
        PROTOCOL_OF_NAME,
        doc="Protocol of each listener: PLAINTEXT, SSL for TLS, SASL_PLAINTEXT or SASL_SSL where clients log in.",
        example="PLAINTEXT:PLAINTEXT,LAN:SSL",
    )
    http_listen = Property(
        "http.listen",
        OptionalHostPort(scheme="http"),
        None,
        doc="Where a page for people, /metrics, /healthz and the segment manifest are served over HTTP.",
        default_doc="the first listener's host and port 9644, or a free port if that listener has one, too",
        example="127.0.0.1:9644",
    )
    http_allowed_hosts = Property(
        "http.allowed.hosts",
        Hosts(),
        (),
        doc="Further names by which browsers and programs may reach the HTTP port. A request by another name is "
        "refused, so that no web page can use the port through a name of its own. IP addresses, loopback names, and "
        "the hosts of listeners, advertised.listeners, http.listen and peer.listen need no setting. /metrics and "
        "/healthz answer by any name. `*.SUFFIX` allows every name below one, `*` any name.",
        example="millstream,*.millstream-brokers.default.svc.cluster.local",
    )
    console_enabled = Property(
        "console.enabled",
        Boolean(),
        True,
        doc="Whether the HTTP port serves the console: pages about topics, messages and groups under /console. It runs "
        "in a process of its own, from the first visit until 15 minutes after the last. It needs the extra `console`.",
    )
    console_read_only = Property(
        "console.read.only",
        Boolean(),
        False,
        doc="Whether the console of the HTTP port has no page that changes anything.",
    )
    console_mask = Property(
        "console.mask",
        Masks(),
        (),
        doc="Fields of records that no visitor of the console sees, in pages, filters, live views and exports: paths "
        "of key, value or headers, after the pattern of topics' names and a slash where they are not for all topics. "
        "Consumers of the topic see them.",
        example="value.card.number,headers.authorization,customers/value.email",
    )
    metrics_topics_max = Property(
        "metrics.topics.max",
        Integer(0, 10_000),
        100,
        doc="How many topics have metrics of their own in /metrics, the first by name. Each costs four time series.",
    )
    metrics_groups_max = Property(
        "metrics.groups.max",
        Integer(0, 10_000),
        100,
        doc="How many pairs of a consumer group and a topic have their lag in /metrics, the first by name. Each costs "
        "one time series.",
    )
    socket_request_max_bytes = Property(
        "socket.request.max.bytes",
        Integer(1024, unit="bytes"),
        100 * _MIB,
        doc="Maximum size of a request frame. A connection that announces more is closed. The limit is also 30 % of "
        "a shard's memory (`memory.bytes` divided by `shards`).",
    )
    socket_frame_timeout_ms = Property(
        "socket.frame.timeout.ms",
        Integer(100, unit="ms"),
        30_000,
        doc="Time between the first and the last byte of one request, whose memory is reserved meanwhile. A slower "
        "client is disconnected.",
    )
    connections_max = Property(
        "max.connections",
        Integer(1),
        20_000,
        doc="Maximum number of connections. A further connection is closed. Apache Kafka has no limit by default.",
        live=True,
    )
    connections_max_per_ip = Property(
        "max.connections.per.ip",
        Integer(0),
        INT32_MAX,
        doc="Maximum number of connections from one address.",
        live=True,
    )
    connections_max_per_ip_overrides = Property(
        "max.connections.per.ip.overrides",
        AddressCounts(),
        (),
        doc="Other maximum numbers of connections, for single addresses. Host names are refused: they are addresses of "
        "others tomorrow.",
        example="10.0.0.7:1000,::1:50",
        live=True,
    )
    connection_creation_rate_max = Property(
        "max.connection.creation.rate",
        Integer(1),
        INT32_MAX,
        doc="Maximum number of new connections a second. Above it, new ones wait.",
        live=True,
    )
    quota_window_num = Property(
        "quota.window.num",
        Integer(2, 1_000),
        11,
        doc="Number of windows over which the rates of clients with quotas are measured.",
    )
    quota_window_size_seconds = Property(
        "quota.window.size.seconds",
        Integer(1, 3_600, unit="s"),
        1,
        doc="Length of such a window.",
    )
    controller_quota_window_num = Property(
        "controller.quota.window.num",
        Integer(1, 1_000),
        11,
        doc="Windows whose changes a client may make at once under the quota `controller_mutation_rate`.",
    )
    controller_quota_window_size_seconds = Property(
        "controller.quota.window.size.seconds",
        Integer(1, 3_600, unit="s"),
        1,
        doc="Length of such a window.",
    )
    connections_max_idle_ms = Property(
        "connections.max.idle.ms",
        Integer(1_000, INT64_MAX, unit="ms"),
        600_000,
        doc="Time without a request after which a connection is closed.",
    )
    fetch_max_bytes = Property(
        "fetch.max.bytes",
        Integer(1024, unit="bytes"),
        55 * _MIB,
        doc="Maximum size of one fetch response. A larger first batch is sent all the same.",
    )
    fetch_session_slots = Property(
        "max.incremental.fetch.session.cache.slots",
        Integer(0),
        1_000,
        doc="Maximum number of incremental fetch sessions, over all shards.",
    )
    max_request_partition_size_limit = Property(
        "max.request.partition.size.limit",
        Integer(1),
        2_000,
        doc="Maximum number of partitions in one response to DescribeTopicPartitions. The client requests the "
        "others separately.",
    )
    client_telemetry_topic = Property(
        "client.telemetry.topic",
        Text("the name of a topic"),
        "",
        doc="Topic for the metrics that clients push about themselves (KIP-714), stored as they were pushed. "
        "Without a topic the broker does not offer client metrics.",
        example="client-telemetry",
    )
    telemetry_max_bytes = Property(
        "telemetry.max.bytes",
        Integer(1, unit="bytes"),
        _MIB,
        doc="Maximum size of one push of client metrics.",
    )
    delete_topic_enable = Property("delete.topic.enable", Boolean(), True, doc="Whether clients may delete topics.")
    auto_create_topics_enable = Property(
        "auto.create.topics.enable",
        Boolean(),
        True,
        doc="Whether a topic is created when a client that allows it requests a topic that does not exist.",
    )

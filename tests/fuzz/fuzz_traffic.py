"""What stock clients really send: recorded between them and a broker, at run time, never kept in the repository.

``record`` starts a broker that tells its clients to come to a port of ours, lets librdkafka, kafka-python and aiokafka
create topics, produce with every codec, consume in groups, commit, look at things and delete them, and writes each
different request to a file: a length and the bytes, as on the wire. ``load`` reads that file back, by API and version.
"""

import asyncio
import contextlib
import socket
import struct
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))

REQUEST_BYTES_MAX = 8 << 10
KEPT_EACH = 12
"""Different requests of one API and version that are kept."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def load(path: Path) -> dict[tuple[int, int], list[bytes]]:
    """The recorded requests by (API key, version), headers included."""
    found: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    data = path.read_bytes()
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        request = data[at + 4 : at + 4 + size]
        found[struct.unpack_from(">hh", request)].append(request)
        at += 4 + size
    return dict(found)


def record(path: Path) -> None:
    """Let the clients talk, and write what they said to ``path``."""
    from millstream.config.ports import free_ports
    from millstream.testing import broker

    with Tap() as tap:
        here = f"127.0.0.1:{tap.port}"
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        settings = {"advertised.listeners": f"PLAINTEXT://{here}", "group.initial.rebalance.delay.ms": 0}
        tap.to(listen)
        with broker(settings=settings, memory="128MiB", shards=1, listen=listen):
            for client in (librdkafka, kafka_python, aiokafka):
                client(here)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(struct.pack(">i", len(one)) + one for one in tap.requests()))


class Tap:
    """A port that passes everything on to a broker and remembers the requests."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target = ("127.0.0.1", 0)
        self._seen: dict[tuple[int, int], dict[bytes, bytes]] = defaultdict(dict)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def to(self, bootstrap: str) -> None:
        """Where the broker is; connections are taken from now on."""
        host, _, port = bootstrap.rpartition(":")
        self._target = (host, int(port))
        threading.Thread(target=self._accept, daemon=True).start()

    def requests(self) -> Generator[bytes]:
        for _, kept in sorted(self._seen.items()):
            yield from list(kept.values())[:KEPT_EACH]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    raise
                threading.Thread(target=self._pass, args=(client, server, self._cut()), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, None), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, look: Callable[[bytes], None] | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if look is not None:
                    look(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()  # the other direction closes the other end

    def _cut(self) -> Callable[[bytes], None]:
        """Cuts one connection's bytes into requests."""
        rest = bytearray()

        def look(data: bytes) -> None:
            rest.extend(data)
            while len(rest) >= 4 and len(rest) >= 4 + (size := int.from_bytes(rest[:4], "big")):
                self._remember(bytes(rest[4 : 4 + size]))
                del rest[: 4 + size]

        return look

    def _remember(self, request: bytes) -> None:
        if len(request) <= REQUEST_BYTES_MAX:
            unlike = request[:4] + request[8:]  # without the correlation id
            with self._lock:
                self._seen[struct.unpack_from(">hh", request)].setdefault(unlike, request)


def librdkafka(bootstrap: str) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic("rd", 3, 1, config={"retention.ms": "100000"})]).values():
        future.result(60)
    for codec in CODECS:
        for acks in ("1", "all"):
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "compression.type": codec,
                    "acks": acks,
                    "enable.idempotence": acks == "all",
                }
            )
            for i in range(20):
                producer.produce("rd", b"value %d" % i * 3, key=b"k%d" % i, headers=[("h", b"x"), ("n", None)])
            producer.flush(60)
    for protocol in ("range", "cooperative-sticky"):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"rd-{protocol}",
                "group.instance.id": f"static-{protocol}",
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": protocol,
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["rd", "^r.*"])
        consumer.consume(100, 10)
        consumer.commit(asynchronous=False)
        consumer.committed([TopicPartition("rd", 0)], 10)
        consumer.get_watermark_offsets(TopicPartition("rd", 0), 10)
        consumer.offsets_for_times([TopicPartition("rd", 0, 5)], 10)
        consumer.close()
    for ask in (
        lambda: admin.list_topics(timeout=60),
        lambda: admin.list_groups(timeout=60),
        lambda: admin.list_consumer_groups().result(60),
        lambda: admin.describe_consumer_groups(["rd-range"])["rd-range"].result(60),
        lambda: admin.describe_cluster().result(60),
        lambda: next(iter(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "rd")]).values())).result(60),
        lambda: admin.create_partitions([NewPartitions("rd", 5)])["rd"].result(60),
        lambda: next(iter(admin.delete_records([TopicPartition("rd", 0, 1)]).values())).result(60),
        lambda: admin.delete_consumer_groups(["rd-range"])["rd-range"].result(60),
        lambda: admin.delete_topics(["rd"])["rd"].result(60),
    ):
        with contextlib.suppress(KafkaException):  # what the broker answers does not matter here
            ask()


def kafka_python(bootstrap: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for codec in (None, "gzip"):
            producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec)
            for i in range(10):
                producer.send("py", b"value %d" % i, key=b"k", headers=[("h", b"x")])
            producer.flush(60)
            producer.close()
        consumer = KafkaConsumer(
            "py", bootstrap_servers=bootstrap, group_id="py", auto_offset_reset="earliest", consumer_timeout_ms=3000
        )
        for _, _ in zip(range(20), consumer, strict=False):
            continue
        consumer.commit()
        consumer.end_offsets([TopicPartition("py", 0)])
        consumer.offsets_for_times({TopicPartition("py", 0): 5})
        consumer.close()
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        for name in ("list_topics", "describe_cluster", "list_groups", "describe_topics", "list_consumer_groups"):
            with contextlib.suppress(KafkaError, AttributeError):
                getattr(admin, name)()
        admin.close()


def aiokafka(bootstrap: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def talk() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        for i in range(10):
            await producer.send_and_wait("aio", b"value %d" % i, key=b"k")
        await producer.stop()
        consumer = AIOKafkaConsumer("aio", bootstrap_servers=bootstrap, group_id="aio", auto_offset_reset="earliest")
        await consumer.start()
        got = 0
        while got < 10:
            await asyncio.wait_for(consumer.getone(), 20)
            got += 1
        await consumer.commit()
        await consumer.stop()

    asyncio.run(talk())

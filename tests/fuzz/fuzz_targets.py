"""Everything that reads bytes from outside, by name: what is run, what may be raised, what the inputs grow from.

A target takes any bytes. It may return, or raise one of the errors that it names; whatever else comes out is a crash.
What it may hold at its peak is ``4 × the input`` and, on top, what Python's objects cost for a byte that becomes an
object of its own (``per_byte``, for requests ``objects_max`` at most; ``wire.decoding`` says why four times alone
cannot be and how it is bounded), and a ``constant``, such as what a decompressor may put out; at once, without these.
"""

import contextlib
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "props"))

from fuzz_batches import bend_batch, bombs, samples
from fuzz_mutation import apply, bend, scramble
from fuzz_peers import every_format
from fuzz_spans import Malformed, Span, header_spans, spans
from wire_samples import sample

from millstream.coordinator.records import decode_record
from millstream.errors import Corruption, Rejected
from millstream.format import compacted
from millstream.iobuf import Arena, IoBuf
from millstream.kafka import cost, dispatch, served
from millstream.kafka.context import RequestContext
from millstream.net.client import Client
from millstream.net.connection import Connection, Exchange
from millstream.net.intake import Intake
from millstream.net.responses import Responses
from millstream.wire import compression, inspection
from millstream.wire.apis import APIS
from millstream.wire.codec import decode_message, decode_request, encode_message, request_decoder
from millstream.wire.decoding import OBJECT_BYTES_MAX
from millstream.wire.errors import BatchError, ProtocolError
from millstream.wire.frames import request_frame
from millstream.wire.headers import parse_request_header
from millstream.wire.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.produce_again import ProduceAgain
from millstream.wire.produce_chain import decode_produce_at
from millstream.wire.records import Record, build_batch, check_batch, iter_batches, iter_records, parse_header
from millstream.wire.schema import Embedded, Message, Stored, StoredKey
from millstream.wire.stored import decode_offsets_key, decode_versioned, encode_key

OUTPUT_MAX = 1 << 20
"""What decompressors may put out here; a broker's own limits are larger and handed in the same way."""

CONSTANT = 64 << 10
OBJECT_BYTES = 64
"""What the smallest object of a decoded array costs; an element has a byte at least."""

REQUEST_BYTES = 48
"""The same of a request, whose elements are charged for before they are made."""

RULES = [
    inspection.Rules(4, None, 1 << 20, keyed=True, append_time=False, oldest_ms=0, newest_ms=10**12),
    inspection.Rules(-1, None, 1 << 20, keyed=False, append_time=False, oldest_ms=-1, newest_ms=(1 << 63) - 1),
    inspection.Rules(0, None, 1 << 20, keyed=False, append_time=True, oldest_ms=0, newest_ms=0),
]
"""What topics want of a batch that is looked into."""

_WALKED_MAX = 2000
"""Inputs that grew beyond this are bent blindly: a walk through them would take longer than what is tried."""

Mutate = Callable[[Random, bytes], bytes]


class Target(NamedTuple):
    """One reader of bytes."""

    name: str
    run: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    seeds: list[bytes]
    mutate: Mutate
    per_byte: int = 4
    constant: int = CONSTANT
    objects_max: int = sys.maxsize

    def memory_max(self, size: int) -> int:
        """Bytes that an input of ``size`` bytes may make this reader hold; ``single_max``: ask for at once."""
        return self.single_max(size) + min((self.per_byte - 4) * size, self.objects_max)

    def single_max(self, size: int) -> int:
        return self.constant + 4 * size


def targets(traffic: dict[tuple[int, int], list[bytes]] | None = None) -> list[Target]:
    """All of them; ``traffic`` is what clients were seen to send, whole requests by API and version."""
    traffic = traffic or {}
    found = [_request(key, version, traffic.get((key, version), [])) for key in APIS for version in _versions(key)]
    found += [_response(key, version) for key in APIS for version in _versions(key)]
    found += [_frame(traffic), _dispatch(traffic), _chain(traffic), _again()]
    found += _stored() + _embedded() + _batches() + _codecs() + fuzz_targets_of_formats()
    return found


def _versions(key: int) -> range:
    low, high = APIS[key].versions
    return range(low, high + 1)


class Samples:
    """Valid messages of one class and version with the spans of each; the mutations of a target."""

    def __init__(self, cls: type[Message], version: int, seen: list[bytes], prefix: bytes = b"") -> None:
        self.cls, self.version, self.prefix = cls, version, prefix
        rng = Random(f"{cls.__name__}{version}")
        made = [bytes(encode_message(sample(rng, cls, version), version)) for _ in range(6)]
        made.append(bytes(encode_message(sample(rng, cls, version, longest=9), version)))
        self.spans: dict[bytes, list[Span]] = {}
        for data in [*made, *seen]:
            try:
                self.spans[prefix + data] = spans(cls, version, prefix + data, len(prefix))
            except Malformed:
                if data in made:
                    raise
        self.seeds = list(self.spans)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        known = self.spans.get(data)
        if known is None and len(data) < _WALKED_MAX:
            try:
                known = spans(self.cls, self.version, data, len(self.prefix))
            except Malformed:
                known = None
        return scramble(rng, data, self.seeds) if known is None else bend(rng, data, known, self.seeds)


def _request(key: int, version: int, seen: list[bytes]) -> Target:
    api = APIS[key]
    bodies = [body for body in map(_body_of, seen) if body is not None]
    grown = Samples(api.request, version, bodies)
    run = partial(_decode_request, key, version)
    bound = (REQUEST_BYTES, CONSTANT, OBJECT_BYTES_MAX)
    return Target(f"request {api.name} {version}", run, (ProtocolError,), grown.seeds, grown.mutate, *bound)


def _decode_request(key: int, version: int, data: bytes) -> None:
    decode_request(key, version, data, 0, len(data))


def _body_of(request: bytes) -> bytes | None:
    try:
        return request[parse_request_header(request, 0, len(request)).body_pos :]
    except ProtocolError:
        return None


def _response(key: int, version: int) -> Target:
    api = APIS[key]
    grown = Samples(api.response, version, [])
    run = partial(decode_message, api.response, version)
    name = f"response {api.name} {version}"
    return Target(name, run, (ProtocolError,), grown.seeds, grown.mutate, per_byte=OBJECT_BYTES)


class Frames:
    """Whole requests, header and body, with the spans of both."""

    def __init__(self, traffic: dict[tuple[int, int], list[bytes]], keys: list[int]) -> None:
        self.spans: dict[bytes, list[Span]] = {}
        rng = Random(5)
        for key in keys:
            api = APIS[key]
            for version in _versions(key):
                frame = request_frame(sample(rng, api.request, version), version, 7, rng.choice((None, "", "client-ä")))
                for data in (bytes(frame[4:]), *traffic.get((key, version), [])[:3]):
                    self._add(api.request, version, data)
        self.seeds = list(self.spans)

    def _add(self, cls: type[Message], version: int, data: bytes) -> None:
        try:
            head = header_spans(data)
            at = parse_request_header(data, 0, len(data)).body_pos
            body = spans(cls, version, data, at)
        except (Malformed, ProtocolError):
            return
        shift = len(head)
        self.spans[data] = head + [one if one.parent < 0 else one._replace(parent=one.parent + shift) for one in body]

    def mutate(self, rng: Random, data: bytes) -> bytes:
        known = self.spans.get(data)
        if known is None:
            return scramble(rng, data, self.seeds)
        if rng.random() < 0.1:
            return apply(data, [(0, 4, struct.pack(">hh", rng.choice(list(APIS)), rng.randrange(-1, 20)))])
        return bend(rng, data, known if rng.random() < 0.5 else known[:7], self.seeds)


def _frame(traffic: dict[tuple[int, int], list[bytes]]) -> Target:
    frames = Frames(traffic, list(APIS))
    return Target("frame", _read_frame, (ProtocolError,), frames.seeds, frames.mutate, per_byte=REQUEST_BYTES)


def _read_frame(data: bytes) -> None:
    header = parse_request_header(data, 0, len(data))
    assert header.body_pos <= len(data)
    decode_request(header.api_key, header.api_version, data, header.body_pos, len(data))


class _Refused(Exception):
    """What the broker's edge does to a connection that sent garbage."""


class _Connection(Connection):
    """As much of a connection as the edge touches before a handler runs."""

    __slots__ = ()

    def __init__(self) -> None:
        self.client = Client(("", 0), ("", 0), "", "")
        self.responses = Responses()
        self.received_us = 0
        self.frame = self.produces = None
        self.intake = _INTAKE

    def close(self) -> None:
        raise AssertionError("a handler failed")


class _Intake(Intake):
    """Where a connection is refused."""

    def __init__(self) -> None:
        self.turns: Any = _Turns()

    def refuse(self, connection: Connection, why: str) -> None:
        raise _Refused(why)


class _Turns:
    """A costly request never waits."""

    def __init__(self) -> None:
        self.under_way = 0
        self.parking = self

    def must_wait(self, *, large: bool = False) -> bool:
        return False

    def park(self, exchange: Exchange, weight: int) -> None:
        assert weight <= OBJECT_BYTES_MAX + dispatch.LINEAR_BYTES_MAX


_INTAKE = _Intake()


def _ignore(*_: object) -> None:
    """A handler that leaves the request unanswered."""


def edge() -> dispatch.Dispatcher:
    """The broker's dispatcher with handlers that do nothing."""
    dispatcher = dispatch.Dispatcher.__new__(dispatch.Dispatcher)
    dispatcher.apis = {}
    for key in served.SERVED:
        api: Any = cost.HandledApi.__new__(cost.HandledApi)
        api.key, api.name = key, APIS[key].name
        api.min_version, api.max_version = APIS[key].versions
        api.flexible_from = APIS[key].flexible
        api.handle, api.costly = _ignore, False
        row = served.SERVED[key]
        api.effect, api.gathers, api.weightless = row.effect, row.gathers, row.weightless
        api.decoders = {version: request_decoder(key, version) for version in _versions(key)}
        dispatcher.apis[key] = api
    dispatcher.node = None  # type: ignore[assignment]
    dispatcher.context = RequestContext
    dispatcher._unserved_version = _ignore  # type: ignore[method-assign]
    return dispatcher


def _dispatch(traffic: dict[tuple[int, int], list[bytes]]) -> Target:
    dispatcher = edge()
    frames = Frames(traffic, list(served.SERVED))

    def run(data: bytes) -> None:
        dispatcher.on_frame(_Connection(), memoryview(data))

    return Target("dispatch", run, (_Refused,), frames.seeds, frames.mutate, per_byte=REQUEST_BYTES)


def _again() -> Target:
    """Two Produce requests of one connection: the second, decoded from what the first taught, is what it says it is.

    An input is a byte for the version, two for the length of the first request, both requests.
    """
    low, high = APIS[0].request.FLEXIBLE, APIS[0].versions[1]
    batch = build_batch([(b"key", b"v" * 150, [], 5)])
    seeds: list[bytes] = []
    for version in range(low, high + 1):
        for txn in (None, "txn"):
            part = PartitionProduceData(3, batch)
            topic = TopicProduceData("topic" if version < 13 else "", bytes(16) if version < 13 else b"i" * 16, [part])
            body = bytes(encode_message(ProduceRequest(txn, -1, 5000, [topic]), version))
            seeds.append(bytes((version,)) + len(body).to_bytes(2, "big") + body * 2)

    def run(data: bytes) -> None:
        version = min(max(data[0] if data else low, low), high)
        cut = 3 + int.from_bytes(data[1:3], "big")
        again, decode = ProduceAgain(), request_decoder(0, version)
        for request in (memoryview(data)[3:cut], memoryview(data)[cut:]):
            try:
                wanted = decode(request, 0, len(request))
            except ProtocolError:
                wanted = None
            try:
                found = again.decode(decode, request, 0, len(request), version)
            except ProtocolError:
                found = None
            assert found == wanted, "what was remembered is not what was said"

    def mutate(rng: Random, data: bytes) -> bytes:
        if len(data) < 8 or rng.random() < 0.1:
            return scramble(rng, data, seeds)
        cut = 3 + int.from_bytes(data[1:3], "big")
        first, second = data[3:cut], data[cut:]
        if rng.random() < 0.6:
            try:
                known = spans(ProduceRequest, min(max(data[0], low), high), first)
            except Malformed:
                known = []
            first = bend(rng, first, known) + bytes(rng.choice((0, 0, 0, 1, 3)))
        if rng.random() < 0.5:
            second = first
        if rng.random() < 0.8:
            second = scramble(rng, second)
        return data[:1] + (len(first) & 0xFFFF).to_bytes(2, "big") + first + second

    return Target("produce again", run, (), seeds, mutate, per_byte=2 * OBJECT_BYTES)


def _chain(traffic: dict[tuple[int, int], list[bytes]]) -> Target:
    """Produce requests in pieces of seven bytes, by the decoder that does not join them."""
    arena = Arena.create(0, 32 << 20)
    low, high = APIS[0].versions
    parts = {version: Samples(APIS[0].request, version, []) for version in (low, 8, 9, high)}
    for version in parts:
        for seen in traffic.get((0, version), [])[:4]:
            body = _body_of(seen)
            if body is not None and len(body) < 2000:
                parts[version].seeds.append(body)
    seeds = [bytes((version,)) + seed for version, one in parts.items() for seed in one.seeds]

    def run(data: bytes) -> None:
        version = data[0] if data else high
        chain = IoBuf()
        for at in range(1, min(len(data), 4096), 7):
            fragment = arena.allocate(7)
            piece = data[at : at + 7]
            fragment.view[: len(piece)] = piece
            chain.append(fragment, 0, len(piece))
        try:
            request = decode_produce_at(chain, 0, version)
            for topic in request.topic_data:
                for one in topic.partition_data:
                    if one.records is not None:
                        one.records.release()  # type: ignore[union-attr]
        finally:
            chain.release()
            assert arena.live_fragments == 0, "a share was not given back"

    def mutate(rng: Random, data: bytes) -> bytes:
        one = parts.get(data[0]) if data else None
        return scramble(rng, data, seeds) if one is None else data[:1] + one.mutate(rng, data[1:])

    return Target("produce in a chain", run, (ProtocolError,), seeds, mutate, per_byte=2 * OBJECT_BYTES)


def _stored() -> list[Target]:
    """Records of ``__consumer_offsets``: the keys, the values of every class, and both together."""
    found: list[Target] = []
    for cls in _kinds_of(StoredKey):
        rng = Random(cls.__name__)
        keys = [encode_key(sample(rng, cls, 0)) for _ in range(6)]
        grown = Samples(cls, 0, [], prefix=keys[0][:2])
        found.append(Target(f"stored {cls.__name__}", decode_offsets_key, (ProtocolError,), grown.seeds, grown.mutate))
    for cls in _kinds_of(Stored):
        for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1):
            grown = Samples(cls, version, [], prefix=version.to_bytes(2, "big"))
            run = partial(decode_versioned, cls)
            name = f"stored {cls.__name__} {version}"
            found.append(Target(name, run, (ProtocolError,), grown.seeds, grown.mutate, per_byte=OBJECT_BYTES))
    found.append(_stored_record(found))
    return found


def _kinds_of(base: type) -> list[type]:
    """The classes of records that are stored: those that others share their fields with are none."""
    found, left = [], base.__subclasses__()
    while left:
        cls = left.pop()
        left += cls.__subclasses__()
        if not cls.__subclasses__():
            found.append(cls)
    return sorted(found, key=lambda one: one.__name__)


def _stored_record(parts: list[Target]) -> Target:
    """Key and value as a loading coordinator reads them; a byte says how long the key is."""
    keys = [seed for part in parts if part.name.split()[1].endswith("Key") for seed in part.seeds if len(seed) < 256]
    values = [seed for part in parts if not part.name.split()[1].endswith("Key") for seed in part.seeds]
    rng = Random(3)
    seeds = [bytes((len(key),)) + key + rng.choice(values) for key in keys for _ in range(4)]

    def run(data: bytes) -> None:
        size = data[0] if data else 0
        decode_record(Record(0, 0, data[1 : 1 + size] or None, data[1 + size :] or None))

    return Target("stored record", run, (Corruption,), seeds, lambda r, d: scramble(r, d, seeds), OBJECT_BYTES)


def _embedded() -> list[Target]:
    """What members of a group tell each other, as the coordinator looks into it."""
    found: list[Target] = []
    for cls in (ConsumerProtocolSubscription, ConsumerProtocolAssignment):
        for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1):
            grown = Samples(cls, version, [], prefix=version.to_bytes(2, "big"))
            name = f"embedded {cls.__name__} {version}"
            run = partial(_read_embedded, cls)
            found.append(Target(name, run, (ProtocolError,), grown.seeds, grown.mutate, per_byte=OBJECT_BYTES))
    return found


def _read_embedded(cls: type[Embedded], data: bytes) -> None:
    try:
        decode_versioned(cls, data)
    finally:
        decode_message(cls, 0, data, 2)


def _batches() -> list[Target]:
    grown = samples()

    def mutate(rng: Random, data: bytes) -> bytes:
        return bend_batch(rng, data, grown)

    def walk(data: bytes) -> None:
        for batch in iter_batches(data):
            for record in iter_records(batch, OUTPUT_MAX):
                assert -(1 << 63) <= record.timestamp < 1 << 63

    def check(data: bytes) -> None:
        half = len(data) // 3
        header = check_batch([data[:half], data[half:]])
        assert header.size == len(data)

    def look(data: bytes) -> None:
        check_batch([data])
        before, inspection.RECORDS_MAX = inspection.RECORDS_MAX, OUTPUT_MAX  # type: ignore[misc]
        try:
            for rules in RULES:
                with contextlib.suppress(inspection.Refused):
                    made = inspection.inspect_batch(data, rules)
                    assert made is None or check_batch([made])
        finally:
            inspection.RECORDS_MAX = before  # type: ignore[misc]

    def compact(data: bytes) -> None:
        """As the cleaner does with what was stored unread; records with a key stay."""
        for batch in iter_batches(data):
            header = parse_header(batch)
            compacted.records_of(header, batch, OUTPUT_MAX)
            for horizon in (None, 5, header.base_timestamp):
                left, count = compacted.filtered(
                    header, batch, lambda one: one.key is not None, lambda _, at=horizon: at
                )
                assert left is None or (count and parse_header(left).record_count == count)
            compacted.emptied(header)

    return [
        Target("batch compaction", compact, (BatchError,), grown, mutate, 4 * OBJECT_BYTES, CONSTANT + 4 * OUTPUT_MAX),
        Target("batch inspection", look, (BatchError,), grown, mutate, 2 * OBJECT_BYTES, CONSTANT + 8 * OUTPUT_MAX),
        Target("batch check", check, (BatchError,), grown, mutate),
        Target("batch records", walk, (BatchError,), grown, mutate, OBJECT_BYTES, CONSTANT + 3 * OUTPUT_MAX),
        Target("batch bomb", walk, (BatchError,), bombs(), mutate, OBJECT_BYTES, CONSTANT + 3 * OUTPUT_MAX),
    ]


def _codecs() -> list[Target]:
    """The decompressors by themselves, on streams without a batch around them."""
    found: list[Target] = []
    plain = [b"", b"a", b"abc" * 100, bytes(20000), Random(1).randbytes(3000)]
    for codec in (1, 2, 3, 4):
        seeds = [compression.compress(codec, data) for data in plain]
        seeds += [seeds[2] + seeds[3], seeds[0] * 20]
        found.append(
            Target(
                f"decompress {compression.Codec(codec).name.lower()}",
                partial(_decompress, codec),
                (BatchError,),
                seeds,
                partial(_scrambled, seeds),
                constant=CONSTANT + 3 * OUTPUT_MAX,
            )
        )
    return found


def _decompress(codec: int, data: bytes) -> None:
    assert len(compression.decompress(codec, data, OUTPUT_MAX)) <= OUTPUT_MAX


def _scrambled(seeds: list[bytes], rng: Random, data: bytes) -> bytes:
    return scramble(rng, data, seeds)


def fuzz_targets_of_formats() -> list[Target]:
    """The files of the data directory, and what peers send."""
    return [
        Target(one.name, one.run, (Corruption, Rejected), one.seeds, one.mutate, OBJECT_BYTES, one.constant)
        for one in every_format()
    ]


__all__ = ["Target", "edge", "targets"]

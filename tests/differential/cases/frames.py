"""Every API with frames that are cut, padded, versioned or headed wrongly, and with each of its fields spoiled.

Made from the good request of each API (``good.GOOD``): the whole table over all of its versions for the good request,
the lowest, the highest and the first flexible version for what spoils it.
"""

import struct

from differential import odd
from differential.good import GOOD
from differential.table import EVERY_VERSION, case
from differential.talk import CLIENT_ID, Talk, framed
from millstream.kafka.served import SERVED
from millstream.wire.apis import APIS, Api
from millstream.wire.headers import flexible_from
from millstream.wire.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from millstream.wire.schema import Kind

ZIGZAG_HUGE = b"\xff\xff\xff\xff\x07"

KEPT = {
    (InitProducerIdRequest.API_KEY, "transactional_id"),
    (JoinGroupRequest.API_KEY, "group_id"),
    (ConsumerGroupHeartbeatRequest.API_KEY, "group_id"),
    (ShareGroupHeartbeatRequest.API_KEY, "group_id"),
    (StreamsGroupHeartbeatRequest.API_KEY, "group_id"),
    (AlterShareGroupOffsetsRequest.API_KEY, "group_id"),
}
"""Names that Kafka keeps something under: all that are not UTF-8 turn into one name, so cases would meet there."""


def edges(api: Api) -> list[int]:
    """The versions at which the layout is all there is to learn."""
    low, high = api.versions
    return sorted({low, high, min(max(api.flexible, low), high)})


def header(key: int, version: int, client: bytes | None = CLIENT_ID.encode(), tags: bytes | None = None) -> bytes:
    """A request header; ``tags`` None writes what the version has."""
    name = struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    if tags is None:
        tags = b"\0" if version >= flexible_from(key) else b""
    return struct.pack(">hhi", key, version, 7) + name + tags


def frames(api: Api) -> None:
    """Cases about the bytes around a good body."""
    key = api.key

    def body(t: Talk) -> bytes:
        return odd.encode(GOOD[key](t), t.version)

    def send(t: Talk, data: bytes) -> None:
        t.raw(framed(data), key, t.version)

    def declare(name, make, versions=None):
        def script(t: Talk) -> None:
            send(t, make(t))

        case(name, api.request, edges(api) if versions is None else versions, made=True)(script)

    flexible = [v for v in edges(api) if v >= api.flexible]
    classic = [v for v in edges(api) if v < api.flexible]
    tag = odd.uvarint(1) + odd.uvarint(99) + odd.uvarint(3) + b"abc"

    declare("without a body", lambda t: header(key, t.version))
    declare("cut by a byte", lambda t: header(key, t.version) + body(t)[:-1])
    declare("cut in the middle", lambda t: (lambda b: header(key, t.version) + b[: len(b) // 2])(body(t)))
    declare("with bytes behind it", lambda t: header(key, t.version) + body(t) + b"\0\1\2\xff")
    declare("with an unknown tagged field", lambda t: header(key, t.version) + body(t)[:-1] + tag, flexible)
    declare(
        "with tagged fields out of order",
        lambda t: header(key, t.version) + body(t)[:-1] + b"\2\x63\1a\x62\1b",
        flexible,
    )
    declare("with more tagged fields than bytes", lambda t: header(key, t.version) + body(t)[:-1] + b"\5\x63", flexible)
    declare(
        "with a tagged field longer than the frame",
        lambda t: header(key, t.version) + body(t)[:-1] + b"\1\x63" + ZIGZAG_HUGE,
        flexible,
    )
    declare("with a tagged field in the header", lambda t: header(key, t.version, tags=tag) + body(t), flexible)
    declare("without the header's tags", lambda t: header(key, t.version, tags=b"") + body(t), flexible)
    declare("with tags in a header that has none", lambda t: header(key, t.version, tags=b"\0") + body(t), classic)
    declare("without a client id", lambda t: header(key, t.version, None) + body(t))
    declare("with an empty client id", lambda t: header(key, t.version, b"") + body(t))


def versions_and_headers(api: Api) -> None:
    """Cases about what stands before a body."""
    key, top = api.key, api.versions[1]

    def declare(name, data):
        def script(t: Talk) -> None:
            t.raw(framed(data), key, top)

        case(name, api.request, [top], made=True)(script)

    body = b"\0" * 40
    declare("a version above the highest", header(key, top + 1, tags=b"\0") + body)
    declare("version 32767", header(key, 32767, tags=b"\0") + body)
    declare("version -1", header(key, -1, tags=b"") + body)
    declare("a header cut in the client id", header(key, top)[:15])
    declare("a header of eight bytes", header(key, top)[:8])
    declare("a client id longer than the frame", struct.pack(">hhih", key, top, 7, 32767) + b"short")
    tags = b"\0" if top >= api.flexible else b""

    @case("a client id of length -2", api.request, [top], made=True)
    def _(t: Talk) -> None:
        head = struct.pack(">hhih", key, top, 7, -2) + tags
        t.raw(framed(head + odd.encode(GOOD[key](t), top)), key, top)

    @case("a client id that is not UTF-8", api.request, [top], made=True)
    def _(t: Talk) -> None:
        t.raw(framed(header(key, top, b"\xff\xfe") + odd.encode(GOOD[key](t), top)), key, top)


def spoilt(place: odd.Place) -> dict[str, bytes]:
    """What can be written in the place of a field, by what is wrong with it."""
    if place.kind is Kind.ARRAY:
        classic = {"negative": -2, "claiming 2^31-1 elements": 0x7FFFFFFF}
        out = {what: struct.pack(">i", count) for what, count in classic.items()}
        if place.compact:
            out = {"claiming 2^31-1 elements": ZIGZAG_HUGE + b"", "of a number that never ends": b"\xff" * 10}
        null = b"\0" if place.compact else b"\xff\xff\xff\xff"
    elif place.kind in (Kind.STRING, Kind.BYTES, Kind.RECORDS):
        short = place.kind is Kind.STRING
        form = ">h" if short else ">i"
        out = {"of length -2": struct.pack(form, -2), "longer than the frame": struct.pack(form, 32767)}
        if place.compact:
            out = {"longer than the frame": odd.uvarint(32768), "of a length that never ends": b"\xff" * 10}
        if short:
            out["not UTF-8"] = (b"\3" if place.compact else b"\0\2") + b"\xff\xfe"
        null = b"\0" if place.compact else struct.pack(form, -1)
    elif place.kind is Kind.BOOL:
        return {"of value 2": b"\2"}
    else:
        return {}
    if not place.nullable:
        out["null"] = null
    return out


def fields(api: Api) -> None:
    """Cases that spoil one field each."""
    key = api.key
    made: dict[tuple[str, str], list[int]] = {}
    for version in edges(api):
        blank = _blank(api, version)
        for place in odd.places(blank, version):
            for what in spoilt(place):
                if what == "not UTF-8" and (key, place.path) in KEPT:
                    continue
                made.setdefault((place.path, what), []).append(version)

    def declare(path: str, what: str, versions: list[int]) -> None:
        def script(t: Talk) -> None:
            request = GOOD[api.key](t)
            place = next(one for one in odd.places(request, t.version) if one.path == path)
            t.ask(request, poison={path: spoilt(place)[what]})

        case(f"{path} {what}", api.request, versions, made=True)(script)

    for (path, what), versions in made.items():
        declare(path, what, versions)


class _Blank:
    """Stands in for a talk while the table is made: names without a broker."""

    def __init__(self, version: int) -> None:
        self.version = version

    def name(self, label: str) -> str:
        return label

    def topic(self, *_: object, **__: object):
        from differential.talk import Topic

        return Topic("a", bytes(16))

    filled = topic

    def fence(self) -> None:
        pass


def _blank(api: Api, version: int):
    return GOOD[api.key](_Blank(version))  # type: ignore[arg-type]


def declare_all() -> None:
    for key in sorted(SERVED.keys() & GOOD.keys()):
        api = APIS[key]
        case(EVERY_VERSION, api.request, made=True)(lambda t, key=key: t.ask(GOOD[key](t)))
        frames(api)
        versions_and_headers(api)
        fields(api)


declare_all()

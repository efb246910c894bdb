"""Large responses, described and encoded element by element in the background.

Describing and encoding a topic's properties takes a good part of a millisecond. A request about thousands of topics is
valid, but done at once it would delay all other clients of the shard for seconds. Such a response is built in slices,
limited to a share of the core and one response at a time; its connection is not read until its end.

This applies to responses of a throttle time and one array, as those of CreateTopics and DescribeConfigs: the number of
elements, then the encoded elements. A response of more than ``ANSWER_BYTES_MAX`` is not sent; the connection is closed
with a log line. A defect costs the client its connection, as in ``kafka.dispatch``. A client that disconnects ends the
work.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from millstream.kafka.context import RequestContext
from millstream.telemetry.log import log
from millstream.wire.codec import encode_response
from millstream.wire.schema import Response
from millstream.wire.varint import uvarint

AT_ONCE: Final = 4
"""Number of elements up to which a response is built at once."""
ANSWER_BYTES_MAX: Final = 64 << 20
"""Maximum size of a response: the properties of ten thousand topics, with documentation and synonyms."""


def answer_in_slices(
    ctx: RequestContext, response: Callable[[list[Any]], Response], results: Iterable[Any], count: int
) -> None:
    """Answer with ``response(results)``. ``results`` yields ``count`` elements, each built on demand."""
    if count <= AT_ONCE:
        ctx.respond(response(list(results)))
        return
    ctx.hold()
    ctx.connection.intake.turns.work_off(ctx, _guarded(ctx, _one_by_one(ctx, response, results)))


def _guarded(ctx: RequestContext, work: Generator[None, None, None]) -> Generator[None, None, None]:
    try:
        yield from work
    except AssertionError:
        raise
    except Exception:  # noqa: BLE001 - as in kafka.dispatch
        log.exception("%s version %d failed; its connection is closed", ctx.api.name, ctx.api_version)
        ctx.connection.close()
    if not ctx.done:
        ctx.respond_nothing()


def _one_by_one(
    ctx: RequestContext, response: Callable[[list[Any]], Response], results: Iterable[Any]
) -> Generator[None, None, None]:
    version = ctx.api_version
    empty = response([])
    around = bytes(encode_response(empty, version))
    flexible = version >= type(empty).FLEXIBLE
    tail = 1 if flexible else 0
    front = len(around) - tail
    pieces: list[bytes] = []
    size = 0
    for result in results:
        whole = encode_response(response([result]), version)
        pieces.append(bytes(whole[front : len(whole) - tail]))
        size += len(pieces[-1])
        if ctx.connection.closed:
            return
        if size > ANSWER_BYTES_MAX:
            ctx.connection.intake.refuse(ctx.connection, f"asked for more than {ANSWER_BYTES_MAX} bytes of properties")
            return
        yield
    number = uvarint(len(pieces) + 1) if flexible else len(pieces).to_bytes(4, "big")
    ctx.respond_encoded(b"".join((around[:4], number, *pieces, around[front:])))

"""Answers about many things, described and encoded one thing after the other in the background.

A topic's properties cost a good part of a millisecond to describe and to encode. A request about thousands of topics is
valid, and done in one go it would hold up everyone else on the shard for seconds. So such an answer is put together in
slices, under a share of the core and one answer at a time; its connection is not read meanwhile.

This is for answers that consist of a throttle time and one array, as those of CreateTopics and DescribeConfigs do: the
encoded elements stand in a row behind their number. An answer of more than ``ANSWER_BYTES_MAX`` is not given, and the
connection is closed with a line in the log. A fault of ours on the way costs the client its connection, as in
``kafka.dispatch``. A client that goes away ends the work.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from millstream.kafka.context import RequestContext
from millstream.telemetry.log import log
from millstream.wire.codec import encode_response
from millstream.wire.schema import Response
from millstream.wire.varint import uvarint

AT_ONCE: Final = 4
"""So many are described on the spot."""
ANSWER_BYTES_MAX: Final = 64 << 20
"""The properties of ten thousand topics, with documentation and synonyms."""


def answer_in_slices(
    ctx: RequestContext, response: Callable[[list[Any]], Response], results: Iterable[Any], count: int
) -> None:
    """Answer with ``response(results)``; there are ``count`` of them, and each is made when it is asked for."""
    if count <= AT_ONCE:
        ctx.respond(response(list(results)))
        return
    ctx.hold()
    ctx.connection.intake.work_off(ctx, _guarded(ctx, _one_by_one(ctx, response, results)))


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

"""The messages of a topic: a step at a time, live, and as a file.

The address of a page says everything: ``from`` (``newest``, ``oldest``, an offset, or a time), ``partition``,
``filter``, ``limit``, ``all``, and for a later step its cursor (``after`` or ``before``). So it can be passed on.
Filters are also saved by name, in the browser (``console.kept_filters``).
"""

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from flask import (
    Blueprint,
    Response,
    abort,
    current_app,
    g,
    redirect,
    render_template,
    request,
    stream_template,
    stream_with_context,
    url_for,
)

from millstream.client.cluster import Cluster, TopicPartition
from millstream.console import showing
from millstream.console.access import Access
from millstream.console.filters import FilterError, Subject, parse
from millstream.console.kept_filters import keep_filters, saved_filters, with_filter
from millstream.console.masks import Mask, masks_of
from millstream.console.messages import (
    LIMIT_MAX,
    Match,
    Message,
    Order,
    Step,
    cursor_text,
    end_positions,
    follow,
    held_within,
    positions_at,
    read_cursor,
    read_step,
)
from millstream.console.payloads import Payload
from millstream.console.registry import Registry
from millstream.console.topic_pages import leaderless, topic_of
from millstream.errors import MillstreamError, Rejected
from millstream.wire.messages.metadata import MetadataResponseTopic

STREAMS_MAX: Final = 8
"""Live views and exports at once; each holds a thread and a connection to each leader."""
TAIL_S: Final = 600.0
TAIL_RATE: Final = 25
"""Messages a second that a tail shows; the others are counted."""
EXPORT_MAX: Final = 10_000
EXPORT_S: Final = 60.0
_LIMITS: Final = (20, 50, 100, 500)
_HEARTBEAT_S: Final = 2.0

message_pages = Blueprint("messages", __name__)


class Streams:
    """The long responses that are sent now. ``slots`` are those that are free."""

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(STREAMS_MAX)

    def send(self, parts: Iterator[str], kind: str) -> Response:
        """The parts as a response, if there is a slot; it is free again when the response ends or its reader leaves."""
        if not self.slots.acquire(blocking=False):
            abort(503, f"{STREAMS_MAX} live views and exports are open already; close one.")
        held = [self.slots]

        def free() -> None:
            for slots in held:
                slots.release()
            held.clear()

        def until_the_end() -> Iterator[str]:
            try:
                yield from parts
            finally:
                free()

        answer = Response(stream_with_context(until_the_end()), mimetype=kind)
        answer.call_on_close(free)  # also of a response whose first part was never asked for
        return answer


class _Asked(NamedTuple):
    """What the address asks for. ``problem`` is what is wrong with the filter or the position."""

    start: str
    partition: int | None
    filter: str
    limit: int
    everything: bool
    match: Match | None
    problem: str
    problem_at: int


@message_pages.get("/topics/<name>/messages")
def messages(name: str) -> Response:
    """A step of messages. What is wrong with the request stands beside the field."""
    access: Access = g.access
    _, topic = topic_of(access, name)
    asked = _asked()
    step: Step | None = None
    problem, at = asked.problem, asked.problem_at
    if not problem:
        try:
            with access.cluster() as cluster:
                step = read_step(cluster, _order(cluster, topic, asked), g.registry)
        except Rejected as error:
            problem = error.message
    page = stream_template(
        "messages.html",
        topic=topic,
        tab="messages",
        asked=asked,
        step=step,
        problem=problem,
        problem_at=at,
        limits=_LIMITS,
        backward=_is_backward(asked),
        partitions=sorted(partition.partition_index for partition in topic.partitions),
        next_step=showing.here(**_next(asked, step.cursor)) if step and step.cursor else None,
        inside=showing.here(after=cursor_text(step.inside), before=None) if step and step.inside else None,
        first_step=showing.here(after=None, before=None),
        has_registry=g.registry is not None,
        masks=masks_of(name, g.masks),
        saved=saved_filters(),
        unread=leaderless(topic) if asked.partition is None else [],
    )
    return Response(page, 200 if not problem else 400, mimetype="text/html")


def _next(asked: _Asked, cursor: Mapping[TopicPartition, int]) -> dict[str, Any]:
    text = cursor_text(cursor)
    return {"before": text, "after": None} if _is_backward(asked) else {"after": text, "before": None}


def _is_backward(asked: _Asked) -> bool:
    return "after" not in request.args and ("before" in request.args or asked.start == "newest")


def _asked() -> _Asked:
    given = request.args
    text = given.get("filter", "").strip()
    match, problem, at = None, "", -1
    if text:
        try:
            match = matching(text)
        except FilterError as error:
            problem, at = str(error), error.position
    partition = given.get("partition", "")
    return _Asked(
        given.get("from", "").strip() or "newest",
        showing.number_of(partition, -1) if partition else None,
        text,
        min(max(showing.number_of(given.get("limit"), 50), 1), LIMIT_MAX),
        given.get("all") == "1",
        match,
        problem,
        at,
    )


def matching(text: str) -> Match:
    """A filter over messages.

    Raises:
        FilterError: the text is not a filter.
    """
    parsed = parse(text)

    def match(message: Message) -> bool:
        roots = {
            "key": message.key.data,
            "value": message.value.data,
            "headers": {name: payload.data for name, payload in message.headers},
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "timestamp": message.timestamp_ms,
            "size": message.key.size + message.value.size,
        }
        return parsed(Subject(roots, {"key": message.key.text, "value": message.value.text}))

    return match


def _order(cluster: Cluster, topic: MetadataResponseTopic, asked: _Asked) -> Order:
    name = topic.name or ""
    every = sorted(partition.partition_index for partition in topic.partitions if partition.leader_id >= 0)
    if asked.partition is not None and asked.partition not in every:
        raise Rejected(f"{name} has no partition {asked.partition}, or it has no leader now")
    chosen = every if asked.partition is None else [asked.partition]
    masks = masks_of(name, g.masks)
    for argument in ("after", "before"):
        if argument in request.args:
            given = read_cursor(name, request.args[argument])
            positions = held_within(cluster, {place: offset for place, offset in given.items() if place[1] in chosen})
            return Order(positions, argument == "before", asked.limit, asked.match, asked.everything, masks)
    backward = asked.start == "newest"
    if backward:
        positions = end_positions(cluster, name, chosen)
    elif asked.start == "oldest":
        positions = positions_at(cluster, name, chosen)
    elif asked.start.isascii() and asked.start.isdigit() and len(asked.start) < 19:
        positions = positions_at(cluster, name, chosen, offset=int(asked.start))
    else:
        positions = positions_at(cluster, name, chosen, time_ms=time_ms(asked.start))
    return Order(positions, backward, asked.limit, asked.match, asked.everything, masks)


def time_ms(text: str) -> int:
    """A time in ms since 1970; without a zone it is UTC, as times are shown.

    Raises:
        Rejected: the text is no time.
    """
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Rejected(
            f"{text!r} is no position: expected newest, oldest, an offset such as 1000, or a time such as "
            "2026-01-31T08:00 (UTC)"
        ) from None


@message_pages.post("/topics/<name>/filters")
def save_filter(name: str) -> Response:
    """Save the filter of a search under a name, or with ``remove`` forget it; in the visitor's browser."""
    form = request.form
    text, title = form.get("filter", "").strip(), form.get("title", "").strip()
    kept = with_filter(saved_filters(), title, "" if "remove" in form else text)
    asked: dict[str, Any] = {"filter": text or None, "from": form.get("from") or None}
    where = url_for("messages.messages", name=name, **asked)
    return keep_filters(redirect(where, 303), kept)


# Live


@message_pages.get("/topics/<name>/live")
def live(name: str) -> Response:
    """New messages as server-sent events, for ``TAIL_S`` at most; each is a row of the table."""
    access: Access = g.access
    registry: Registry | None = g.registry
    _, topic = topic_of(access, name)
    asked = _asked()
    if asked.problem:
        abort(400, asked.problem)
    chosen = [partition.partition_index for partition in topic.partitions if partition.leader_id >= 0]
    if asked.partition is not None:
        chosen = [partition for partition in chosen if partition == asked.partition]
    streams: Streams = current_app.extensions["console.streams"]
    masks = masks_of(name, g.masks)
    return streams.send(_tail(access, name, chosen, registry, asked, masks), "text/event-stream")


def _tail(
    access: Access,
    name: str,
    partitions: list[int],
    registry: Registry | None,
    asked: _Asked,
    masks: Sequence[Mask],
) -> Iterator[str]:
    ends = time.monotonic() + TAIL_S
    second, shown, skipped, beat = 0, 0, 0, time.monotonic()
    yield "retry: 3000\n\n"
    with access.connect(timeout_s=5.0) as cluster:
        try:
            for message in follow(cluster, name, partitions, registry, masks):
                now = time.monotonic()
                if now > ends:
                    break
                if message is None:
                    if skipped or now - beat > _HEARTBEAT_S:
                        beat = now
                        yield f"event: skipped\ndata: {skipped}\n\n"
                    continue
                if asked.match is not None and not asked.match(message):
                    continue
                if int(now) != second:
                    second, shown = int(now), 0
                shown += 1
                if shown > TAIL_RATE:
                    skipped += 1
                    continue
                yield _event("message", render_template("message_row.html", message=message))
        except MillstreamError as error:
            yield _event("failed", error.message)
            return
    yield _event("end", "")


def _event(name: str, text: str) -> str:
    lines = "\n".join(f"data: {line}" for line in text.splitlines()) or "data:"
    return f"event: {name}\n{lines}\n\n"


# Export


@message_pages.get("/topics/<name>/export")
def export(name: str) -> Response:
    """What a search finds from its first step on, as lines of JSON: the form that ``millstream produce`` reads.

    At most ``EXPORT_MAX`` records and ``EXPORT_S`` seconds. A file that was cut short ends with a line that says so.
    """
    access: Access = g.access
    registry: Registry | None = g.registry
    _, topic = topic_of(access, name)
    asked = _asked()
    if asked.problem:
        abort(400, asked.problem)
    lacking = leaderless(topic) if asked.partition is None else []
    if lacking:
        abort(503, f"The export would lack partition {', '.join(map(str, lacking))}, which has no leader now.")
    with access.cluster() as cluster:
        order = _order(cluster, topic, asked._replace(limit=LIMIT_MAX))
    streams: Streams = current_app.extensions["console.streams"]
    answer = streams.send(_exported(access, order, registry), "application/x-ndjson")
    answer.headers.set("Content-Disposition", "attachment", filename=f"{name}.jsonl")
    return answer


def _exported(access: Access, order: Order, registry: Registry | None) -> Iterator[str]:
    count, deadline = 0, time.monotonic() + EXPORT_S
    while True:
        with access.cluster() as cluster:
            step = read_step(cluster, order, registry)
        for message in step.messages[: EXPORT_MAX - count]:
            if message.raw is not None:
                yield json_line(message)
                count += 1
        onward, backward = (step.inside, False) if step.inside else (step.cursor, order.backward)
        if onward is None:
            return
        if count >= EXPORT_MAX or time.monotonic() > deadline:
            yield f"{json.dumps({'cut_short': cursor_text(onward)})}\n"
            return
        order = order._replace(positions=onward, backward=backward)


def json_line(message: Message) -> str:
    """A record as one line; bytes that are not UTF-8 are base64, an absent value is null."""
    assert message.raw is not None
    line: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
    }
    _put(line, "key", message.raw.key, message.key)
    _put(line, "value", message.raw.value, message.value)
    headers: list[dict[str, Any]] = []
    for name, data in message.raw.headers:
        header: dict[str, Any] = {"name": name}
        _put(header, "value", data, None)
        headers.append(header)
    if headers:
        line["headers"] = headers
    return f"{json.dumps(line, ensure_ascii=False, default=str)}\n"


def _put(line: dict[str, Any], name: str, data: bytes | None, payload: Payload | None) -> None:
    if data is None:
        line[name] = None
        return
    if payload is not None and payload.format in ("avro", "protobuf"):
        line[name] = payload.data
        return
    try:
        line[name] = data.decode()
    except UnicodeDecodeError:
        line[f"{name}_base64"] = base64.b64encode(data).decode()

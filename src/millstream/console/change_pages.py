"""Pages that change something: topics, records, the offsets of groups, properties.

Each shows first what would happen (``step=preview``) and does it only when that page is confirmed (``step=do``). The
fields travel along, and are checked again. What a change refers to is asked of the cluster at both steps. Afterwards
the page of what was changed says what was done.
Positions are turned into offsets for the preview, and those offsets are what is confirmed: records that arrive between
the two steps are not deleted, and a group is not sent past them. A console with ``read_only`` has none of these pages.
"""

import base64
import binascii
import random
from typing import Any, Final, cast

from flask import Blueprint, Response, flash, g, make_response, redirect, render_template, request, url_for

from millstream.client import group_offsets
from millstream.client.cluster import BROKER_RESOURCE, EARLIEST, LATEST, TOPIC_RESOURCE, TopicPartition
from millstream.console import changes, facts, shares, showing
from millstream.console.access import Access
from millstream.console.masks import masks_of
from millstream.console.message_pages import time_ms
from millstream.console.messages import Message, Order, cursor_text, positions_at, read_cursor, read_step
from millstream.console.showing import number_of
from millstream.console.topic_pages import topic_of
from millstream.errors import MillstreamError, Rejected
from millstream.wire.messages.metadata import MetadataResponseTopic

HEADERS_MAX: Final = 100
TOPIC_SOURCE: Final = 1

change_pages = Blueprint("changes", __name__)


def _step() -> str:
    return request.form.get("step", "") if request.method == "POST" else ""


def _done(address: str, said: str) -> Response:
    flash(showing.brief(said))
    return cast("Response", redirect(address, 303))


def _page(template: str, problem: str = "", **values: Any) -> Response:
    return make_response(render_template(template, problem=problem, **values), 400 if problem else 200)


# Topics


@change_pages.route("/new-topic", methods=["GET", "POST"])
def new_topic() -> Response:
    """A new topic, or a copy of the properties of another (``like``)."""
    access: Access = g.access
    fields = {"name": "", "partitions": "", "replicas": "", "properties": ""}
    like = request.args.get("like", "")
    if like and request.method == "GET":
        _, found = topic_of(access, like)
        with access.cluster() as cluster:
            own = [
                config
                for config in facts.configs(cluster, TOPIC_RESOURCE, like)
                if config.config_source == TOPIC_SOURCE and config.value is not None and not config.is_sensitive
            ]
        fields["partitions"] = str(len(found.partitions))
        fields["replicas"] = str(len(found.partitions[0].replica_nodes)) if found.partitions else ""
        fields["properties"] = "".join(f"{config.name}={config.value}\n" for config in own)
    fields.update({name: request.form[name] for name in fields if name in request.form})
    if not _step():
        return _page("new_topic.html", fields=fields, like=like, result=None)
    try:
        topic = changes.NewTopic(
            fields["name"].strip(),
            number_of(fields["partitions"].strip(), -1),
            number_of(fields["replicas"].strip(), -1),
            changes.read_properties(fields["properties"]),
        )
        with access.cluster() as cluster:
            result = changes.create_topic(cluster, topic, check=_step() != "do")
    except MillstreamError as error:
        return _page("new_topic.html", error.message, fields=fields, like=like, result=None)
    if _step() != "do":
        return _page("new_topic.html", fields=fields, like=like, result=result)
    access.snapshot(fresh=True)
    return _done(url_for("messages.messages", name=topic.name), f"The topic {topic.name} was created.")


@change_pages.get("/topics/<name>/change")
def change_topic(name: str) -> Response:
    """What can be done to a topic."""
    return _change_page(name)


def _change_page(name: str, problem: str = "", preview: dict[str, Any] | None = None) -> Response:
    _, topic = topic_of(g.access, name)
    return _page("change_topic.html", problem, topic=topic, tab="", preview=preview)


@change_pages.post("/topics/<name>/property")
def change_property(name: str) -> Response:
    """Set a property of a topic, or take its own value away."""
    access: Access = g.access
    chosen, removed = request.form.get("name", "").strip(), request.form.get("remove") == "1"
    value = None if removed else request.form.get("value", "").strip()
    try:
        with access.cluster() as cluster:
            known = {config.name: config for config in facts.configs(cluster, TOPIC_RESOURCE, name)}
            changes.alter_property(cluster, TOPIC_RESOURCE, name, chosen, value, check=_step() != "do")
    except MillstreamError as error:
        return _change_page(name, error.message)
    old = known[chosen].value if chosen in known else None
    if _step() != "do":
        becomes = "the default" if value is None else f"“{value}”"
        said = [f"{chosen} of {name} changes from “{old}” to {becomes}."]
        fields = {"name": chosen, "value": value or "", "remove": "1" if removed else ""}
        return _change_page(name, preview=_preview("property", said, fields))
    return _done(url_for("topics.properties", name=name), f"{chosen} was changed.")


@change_pages.post("/topics/<name>/partitions")
def more_partitions(name: str) -> Response:
    """Add partitions."""
    access: Access = g.access
    _, topic = topic_of(access, name)
    total = number_of(request.form.get("total", "").strip(), 0)
    try:
        with access.cluster() as cluster:
            changes.add_partitions(cluster, name, total, check=_step() != "do")
    except MillstreamError as error:
        return _change_page(name, error.message)
    if _step() != "do":
        said = [
            f"{name} gets {total - len(topic.partitions)} partitions more, {total} in total.",
            "Keys will be sent to other partitions than so far, and partitions are never taken away again.",
        ]
        return _change_page(name, preview=_preview("partitions", said, {"total": str(total)}))
    access.snapshot(fresh=True)
    return _done(url_for("topics.topic", name=name), f"{name} has {total} partitions.")


@change_pages.post("/topics/<name>/trim")
def trim(name: str) -> Response:
    """Delete records before an offset or a time, or all of them."""
    access: Access = g.access
    snapshot, topic = topic_of(access, name)
    to, partition = request.form.get("to", "").strip(), request.form.get("partition", "")
    try:
        with access.cluster() as cluster:
            chosen = [number_of(partition, -1)] if partition else _partitions(topic)
            spans = facts.spans(cluster, snapshot, [name])
            confirmed = _step() == "do"
            places = (
                read_cursor(name, request.form.get("at", "")) if confirmed else _positions(cluster, name, chosen, to)
            )
            first = {place: span.start for place, span in spans.items()}
            before = {place: offset for place, offset in places.items() if offset > first.get(place, offset)}
            if not before:
                raise Rejected("no record lies before that position")
            if confirmed:
                changes.delete_records(cluster, before)
    except MillstreamError as error:
        return _change_page(name, error.message)
    count = sum(offset - first[place] for place, offset in before.items())
    if _step() != "do":
        said = [f"{count:,} records are deleted, and cannot be brought back."]
        said += [f"Partition {place[1]}: {first[place]:,} to {offset - 1:,}" for place, offset in before.items()]
        return _change_page(name, preview=_preview("trim", said, {"at": cursor_text(before)}))
    return _done(url_for("topics.topic", name=name), f"{count:,} records were deleted.")


@change_pages.post("/topics/<name>/delete")
def delete_topic(name: str) -> Response:
    """Delete a topic; its name has to be typed."""
    access: Access = g.access
    snapshot, _ = topic_of(access, name)
    try:
        with access.cluster() as cluster:
            if _step() != "do":
                count = sum(span.end - span.start for span in facts.spans(cluster, snapshot, [name]).values())
                said = [f"The topic {name} is deleted with its {count:,} records. They cannot be brought back."]
                return _change_page(name, preview=_preview("delete", said, {}, typed=True))
            if request.form.get("typed", "") != name:
                raise Rejected("the name that was typed is another one; nothing was deleted")
            changes.delete_topic(cluster, name)
    except MillstreamError as error:
        return _change_page(name, error.message)
    access.snapshot(fresh=True)
    return _done(url_for("topics.topics"), f"The topic {name} was deleted.")


def _preview(action: str, said: list[str], fields: dict[str, str], *, typed: bool = False) -> dict[str, Any]:
    """What stands above the button that does it: ``action`` is the end of the address, ``fields`` are sent again."""
    return {"action": action, "said": said, "fields": fields, "typed": typed}


def _partitions(topic: MetadataResponseTopic) -> list[int]:
    return sorted(partition.partition_index for partition in topic.partitions if partition.leader_id >= 0)


def _positions(cluster: Any, name: str, partitions: list[int], to: str) -> dict[TopicPartition, int]:
    """The offsets that ``oldest``, ``newest``, an offset or a time means."""
    if to in ("oldest", "newest"):
        wanted = EARLIEST if to == "oldest" else LATEST
        found = cluster.list_offsets({(name, partition): wanted for partition in partitions})
        return {place: one.offset for place, one in found.items()}
    if to.isascii() and to.isdigit() and len(to) < 19:
        return positions_at(cluster, name, partitions, offset=int(to))
    return positions_at(cluster, name, partitions, time_ms=time_ms(to))


# Records


@change_pages.route("/topics/<name>/produce", methods=["GET", "POST"])
def produce(name: str) -> Response:
    """Send a record, or one that was read again (``partition`` and ``offset`` of the address)."""
    access: Access = g.access
    _, topic = topic_of(access, name)
    fields = {"key": "", "value": "", "headers": "", "to": "", "form": "text", "empty_key": "", "no_value": ""}
    offset = request.args.get("offset", "")
    if offset and request.method == "GET":
        fields |= _fields_of(access, name, number_of(request.args.get("partition"), 0), number_of(offset, 0))
    if request.method == "POST":
        fields |= {field: request.form.get(field, "") for field in fields}
        try:
            key = _bytes(fields["key"], fields["form"], "key")
            key = key if key or fields["empty_key"] else None
            value = None if fields["no_value"] else _bytes(fields["value"], fields["form"], "value")
            headers = _headers(fields["headers"], fields["form"])
            place = (name, _place(topic, fields["to"], key))
            with access.cluster() as cluster:
                stored = changes.send(cluster, place, key, value, headers)
        except MillstreamError as error:
            return _produce_page(topic, fields, error.message)
        where = url_for("messages.messages", name=name, partition=place[1], limit=20)
        return _done(where, f"Stored in partition {place[1]} at offset {stored:,}.")
    return _produce_page(topic, fields)


def _produce_page(topic: MetadataResponseTopic, fields: dict[str, str], problem: str = "") -> Response:
    partitions = _partitions(topic)
    return _page("produce.html", problem, topic=topic, tab="", fields=fields, partitions=partitions)


def _fields_of(access: Access, name: str, partition: int, offset: int) -> dict[str, str]:
    if masks_of(name, g.masks):
        raise Rejected(f"fields of {name} are masked, so its records are not sent again from here")
    with access.cluster() as cluster:
        step = read_step(cluster, Order({(name, partition): offset}, False, 1, None, True), None)
    found = next((message for message in step.messages if message.offset == offset and message.raw is not None), None)
    if found is None:
        raise Rejected(f"{name}-{partition} has no record at offset {offset}")
    assert found.raw is not None
    every = [found.raw.key, found.raw.value, *(data for _, data in found.raw.headers)]
    inline = all(b"\n" not in (data or b"") for _, data in found.raw.headers)
    form = "text" if inline and all(_is_text(data) for data in every) else "base64"
    names = [name for name, _ in found.raw.headers]
    if any("=" in each or each != each.strip() or len(each.splitlines()) != 1 for each in names):
        raise Rejected("the record has header names that a form cannot carry, with = or line ends in them")
    return {
        "key": _field(found.raw.key, form),
        "value": _field(found.raw.value, form),
        "headers": _header_lines(found, form),
        "form": form,
        "to": str(partition),
        "empty_key": "1" if found.raw.key == b"" else "",
        "no_value": "1" if found.raw.value is None else "",
    }


def _header_lines(message: Message, form: str) -> str:
    assert message.raw is not None
    return "".join(
        f"{name}\n" if data is None else f"{name}={_field(data, form)}\n" for name, data in message.raw.headers
    )


def _is_text(data: bytes | None) -> bool:
    """Whether a field of a form gives the same bytes back: browsers turn every line end into CR LF."""
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return False
    return "\r" not in text and "\0" not in text


def _field(data: bytes | None, form: str) -> str:
    if data is None:
        return ""
    return data.decode() if form == "text" else base64.b64encode(data).decode()


def _bytes(text: str, form: str, what: str) -> bytes:
    if form == "text":
        return text.replace("\r\n", "\n").encode()
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        raise Rejected(f"the {what} is no base64") from None


def _headers(text: str, form: str) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if not line.strip():
            continue
        found.append((name.strip(), _bytes(value, form, f"header {name.strip()}") if separator else None))
    if len(found) > HEADERS_MAX:
        raise Rejected(f"a form takes at most {HEADERS_MAX} headers")
    return found


def _place(topic: MetadataResponseTopic, to: str, key: bytes | None) -> int:
    every = _partitions(topic)
    if to:
        chosen = number_of(to, -1)
        if chosen not in every:
            raise Rejected(f"there is no partition {to}, or it has no leader now")
        return chosen
    if key is not None:
        return changes.partition_of(key, len(topic.partitions))
    if not every:
        raise Rejected("no partition has a leader now")
    return random.choice(every)


# Groups


@change_pages.route("/group/reset", methods=["GET", "POST"])
def reset() -> Response:
    """Let a group continue at other offsets, with a table of them first."""
    access: Access = g.access
    group = request.values.get("id", "")
    fields = {name: request.form.get(name, "") for name in ("topic", "to")}
    with access.cluster() as cluster:
        known = facts.find_group(cluster, group)
        if known is None:
            raise Rejected(f"there is no group {group!r}")
        now = shares.positions(cluster, known)
        topics = sorted({topic for topic, _ in now})
        if not _step():
            return _page("reset.html", group=known, topics=topics, fields=fields, rows=None)
    try:
        with access.cluster() as cluster:
            wanted: dict[TopicPartition, int] = {}
            for line in request.form.get("at", "").splitlines() if _step() == "do" else ():
                topic, _, offsets = line.partition(" ")
                wanted |= read_cursor(topic, offsets)
            for topic in () if _step() == "do" else [fields["topic"]] if fields["topic"] else topics:
                _, found = topic_of(access, topic)
                wanted |= _positions(cluster, topic, _partitions(found), fields["to"].strip())
            places = changes.differing(now, wanted)
            if _step() == "do":
                shares.move(cluster, group, known.kind, {place: wanted[place] for place in places})
    except MillstreamError as error:
        return _page("reset.html", error.message, group=known, topics=topics, fields=fields, rows=None)
    if _step() != "do":
        rows = [(*place, now.get(place), wanted[place]) for place in places]
        at = {topic: {place: wanted[place] for place in places if place[0] == topic} for topic, _ in places}
        lines = "\n".join(f"{topic} {cursor_text(offsets)}" for topic, offsets in at.items())
        return _page("reset.html", group=known, topics=topics, fields=fields, rows=rows, at=lines)
    return _done(url_for("groups.group", id=group), f"{len(places)} offsets were set.")


@change_pages.post("/group/delete")
def delete_group() -> Response:
    """Delete a group with its offsets."""
    access: Access = g.access
    group = request.form.get("id", "")
    if _step() != "do":
        return _page("delete_group.html", group=group)
    try:
        with access.cluster() as cluster:
            group_offsets.delete_group(cluster, group)
    except MillstreamError as error:
        return _page("delete_group.html", error.message, group=group)
    return _done(url_for("groups.groups"), f"The group {group} was deleted.")


# Settings of brokers


@change_pages.route("/settings/change", methods=["GET", "POST"])
def change_setting() -> Response:
    """Change a setting of one broker, live."""
    access: Access = g.access
    snapshot = access.snapshot()
    node_id = number_of(request.values.get("broker"), -1)
    name = request.values.get("name", "")
    if node_id not in snapshot.brokers:
        raise Rejected(f"broker {node_id} is not alive, or not a broker of this cluster")
    with access.cluster() as cluster:
        found = facts.configs(cluster, BROKER_RESOURCE, str(node_id), node_id=node_id)
    config = next((one for one in found if one.name == name), None)
    if config is None:
        raise Rejected(f"broker {node_id} has no setting {name!r}")
    value = None if request.form.get("remove") == "1" else request.form.get("value", config.value or "").strip()
    problem = ""
    if _step():
        try:
            with access.cluster() as cluster:
                changes.alter_property(
                    cluster, BROKER_RESOURCE, str(node_id), name, value, check=_step() != "do", node_id=node_id
                )
        except MillstreamError as error:
            problem = error.message
        else:
            if _step() == "do":
                return _done(url_for("cluster.settings", broker=node_id, q=name), f"{name} was changed.")
    preview = bool(_step()) and not problem
    return _page("change_setting.html", problem, node_id=node_id, config=config, value=value, preview=preview)

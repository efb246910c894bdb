"""Confluent's REST API: from a request to a decision, from a decision to a response.

``ROUTES`` is the whole API, in the order in which paths are tried. Bodies are JSON of at most ``BODY_BYTES_MAX``; what
cannot be read is refused with the error code that Confluent's registry has for it, and nothing is written. Members of a
body that are not known are skipped, as other registries do.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from millstream.registry.formats.parsed import InvalidSchema
from millstream.registry.formats.protobuf_format import ProtobufSchema
from millstream.registry.media import accepted_type, decoded_body
from millstream.registry.model import (
    LEVELS,
    MODES,
    Config,
    Context,
    Level,
    Refused,
    Registered,
    Schema,
    SchemaId,
    Subject,
    schema_not_found,
    subject_not_found,
)
from millstream.registry.records import schema_details
from millstream.registry.request import NOT_FOUND, Call, HttpRequest, HttpResponse
from millstream.registry.service import Decision, Service, guid_of
from millstream.registry.subjects import DEFAULT, checked, context_of, plain_target

BODY_BYTES_MAX: Final = 4 << 20
JSON_TYPE: Final = "application/vnd.schemaregistry.v1+json"


def handle(service: Service, request: HttpRequest) -> tuple[Decision, Callable[[Any], HttpResponse]]:
    """What a request comes to, and how its answer is sent once the decision's events are written.

    Raises:
        Refused: with what ``refusal`` makes a response of.
    """
    kind = accepted_type(request.headers.get("accept", ""))
    path, _, query = plain_target(request.target).partition("?")
    if len(request.body) > BODY_BYTES_MAX:
        raise Refused(413, 413, f"The body is larger than {BODY_BYTES_MAX} bytes")
    parts, operation = _route(request.method, path)
    try:
        named = urllib.parse.parse_qsl(query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise Refused(400, 400, "The query has more than 50 fields") from None
    body = b"" if request.method in ("GET", "DELETE") else decoded_body(request.headers, request.body)
    try:
        outcome = operation(Call(service, parts, named, body, request.headers))
    except InvalidSchema as error:  # a stored schema that another registry took
        raise Refused(422, 42201, f"A stored schema is not valid: {error}") from error
    decision = outcome if isinstance(outcome, Decision) else Decision(outcome)
    return decision, lambda answer: HttpResponse(200, kind, _encoded(answer))


def refusal(error: Refused, request: HttpRequest) -> HttpResponse:
    """The response of a request that was refused."""
    try:
        kind = accepted_type(request.headers.get("accept", ""))
    except Refused:
        kind = JSON_TYPE
    return HttpResponse(error.status, kind, _encoded(error.body()))


def _route(method: str, path: str) -> tuple[dict[str, str], Callable[[Call], Any]]:
    allowed = False
    for known, pattern, operation in ROUTES:
        found = pattern.fullmatch(path.rstrip("/"))
        if found is None:
            continue
        allowed = True
        if known == method:
            parts = {name: urllib.parse.unquote_plus(part) for name, part in found.groupdict().items()}
            return parts, operation
    raise Refused(405, 405, "HTTP 405 Method Not Allowed") if allowed else NOT_FOUND


def _encoded(answer: Any) -> bytes:
    if isinstance(answer, bytes):
        return answer
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


# Subjects


def _list_subjects(call: Call) -> Any:
    prefix = call.text("subjectPrefix", ":*:")
    return call.page(call.state.subjects(prefix, deleted=call.flag("deleted"), deleted_only=call.flag("deletedOnly")))


def _look_up(call: Call) -> Any:
    found = call.service.look_up(
        call.subject, call.submission(), normalize=call.flag("normalize"), deleted=call.flag("deleted")
    )
    return _shown(call, found)


def _delete_subject(call: Call) -> Decision:
    return call.service.delete_subject(call.subject, permanent=call.flag("permanent"))


def _list_versions(call: Call) -> Any:
    subject, only = call.subject, call.flag("deletedOnly")
    held = call.state.versions(subject, deleted=call.flag("deleted") or only)
    if not held:
        raise subject_not_found(subject)
    return call.page([registered.version for registered in held if registered.deleted or not only])


def _register(call: Call) -> Decision:
    decision = call.service.register(call.subject, call.submission(), normalize=call.flag("normalize"))
    if call.takes_unknown_members:
        return decision
    return msgspec.structs.replace(decision, answer={k: v for k, v in decision.answer.items() if k != "guid"})


def _get_version(call: Call) -> Any:
    return _shown(call, call.state.version(call.subject, call.version, deleted=call.flag("deleted")))


def _get_version_text(call: Call) -> Any:
    registered = call.state.version(call.subject, call.version, deleted=call.flag("deleted"))
    return _content(call, registered).encode()


def _delete_version(call: Call) -> Decision:
    return call.service.delete_version(call.subject, call.version, permanent=call.flag("permanent"))


def _referenced_by(call: Call) -> Any:
    registered = call.state.version(call.subject, call.version, deleted=True)
    return sorted({other.id for other in call.state.referrers(registered.subject, registered.version)})


def _latest_with_metadata(call: Call) -> Any:
    wanted = dict(zip(call.texts("key"), call.texts("value"), strict=False))
    for registered in reversed(call.state.versions(call.subject, deleted=call.flag("deleted"))):
        metadata: Any = json.loads(registered.schema.metadata or "{}")
        properties: Any = metadata.get("properties") or {}
        if all(properties.get(name) == value for name, value in wanted.items()):
            return _shown(call, registered)
    raise schema_not_found()


# Schemas by id


def _schema_types(call: Call) -> Any:  # noqa: ARG001
    return ["JSON", "PROTOBUF", "AVRO"]


def _list_schemas(call: Call) -> Any:
    found: list[Registered] = []
    deleted = call.flag("deleted")
    for subject in call.state.subjects(call.text("subjectPrefix", ":*:"), deleted=deleted):
        versions = call.state.versions(subject, deleted=deleted)
        found += versions[-1:] if call.flag("latestOnly") else versions
    return [_shown(call, registered) for registered in call.page(found)]


def _get_schema(call: Call) -> Any:
    schema_id, context = _id(call)
    schema = call.state.schema(schema_id, context)
    user = call.state.users(schema_id, context, deleted=True)[0]
    shown: dict[str, Any] = {"schema": _content(call, user), **schema_details(schema), **_guid(call, schema)}
    if call.flag("includeSubjects"):
        shown["subjects"] = [registered.subject for registered in call.state.users(schema_id, context)]
    if call.flag("fetchMaxId"):
        shown["maxId"] = call.state.last_id(context)
    return shown


def _get_schema_text(call: Call) -> Any:
    schema_id, context = _id(call)
    return _content(call, call.state.users(schema_id, context, deleted=True)[0]).encode()


def _subjects_of_id(call: Call) -> Any:
    schema_id, context = _id(call)
    users = call.state.users(schema_id, context, deleted=call.flag("deleted"))
    return call.page(sorted({registered.subject for registered in users}))


def _versions_of_id(call: Call) -> Any:
    schema_id, context = _id(call)
    users = call.state.users(schema_id, context, deleted=call.flag("deleted"))
    return call.page([{"subject": user.subject, "version": user.version} for user in users])


def _get_by_guid(call: Call) -> Any:
    for context in call.state.contexts():
        for schema_id, schema in call.state.schemas(context):
            if guid_of(schema) == call.parts["guid"].lower():
                user = call.state.users(schema_id, context, deleted=True)[0]
                return {"schema": _content(call, user), **schema_details(schema), "guid": guid_of(schema)}
    raise schema_not_found()


def _id(call: Call) -> tuple[SchemaId, Context]:
    given = call.parts["id"]
    if not given.isascii() or not given.isdigit() or len(given) > 10:
        raise NOT_FOUND
    subject = call.text("subject")
    return SchemaId(int(given)), context_of(checked(subject)) if subject else DEFAULT


# Compatibility


def _check_version(call: Call) -> Any:
    found = call.service.check(
        call.subject, call.submission(), call.version, every=False, normalize=call.flag("normalize")
    )
    return _compatibility(call, found)


def _check_all(call: Call) -> Any:
    found = call.service.check(call.subject, call.submission(), None, every=True, normalize=call.flag("normalize"))
    return _compatibility(call, found)


def _compatibility(call: Call, found: list[str]) -> dict[str, Any]:
    if not found and not call.flag("verbose"):
        return {"is_compatible": True}
    return {"is_compatible": not found, "messages": [message[:2000] for message in found[:50]]}


# Configuration


def _get_config(call: Call) -> Any:
    return _config_shown(call.state.effective_config(None))


def _get_subject_config(call: Call) -> Any:
    subject = call.configured_subject
    if call.flag("defaultToGlobal"):
        return _config_shown(call.state.effective_config(subject))
    config = call.state.config(subject)
    if config is None:
        raise Refused(404, 40408, f"Subject '{subject}' does not have subject-level compatibility configured")
    return _config_shown(config)


def _put_config(call: Call) -> Decision:
    return _set_config(call, None)


def _put_subject_config(call: Call) -> Decision:
    return _set_config(call, call.configured_subject)


def _set_config(call: Call, subject: Subject | None) -> Decision:
    body = call.body()
    unsupported = [
        name for name in body if name not in _CONFIG_FIELDS and body[name] is not None and name in _CONFIG_ELSEWHERE
    ]
    if unsupported:
        raise Refused(422, 422, f"{', '.join(unsupported)}: not supported by this registry")
    level = body.get("compatibility", body.get("compatibilityLevel"))
    if level is not None and (not isinstance(level, str) or level.upper() not in LEVELS):
        raise _invalid_level()
    if level is None and not any(body.get(name) is not None for name in _CONFIG_FIELDS):
        raise _invalid_level()
    normalize, alias, group = (body.get(name) for name in ("normalize", "alias", "compatibilityGroup"))
    if not (isinstance(normalize, bool | None) and isinstance(alias, str | None) and isinstance(group, str | None)):
        raise Refused(422, 422, "normalize is true or false, alias and compatibilityGroup are strings")
    config = Config(cast("Level | None", level and level.upper()), normalize, alias, group)
    decision = call.service.set_config(subject, config)
    shown = _config_shown(config)
    if config.level is not None:
        shown = {"compatibility": config.level, **{k: v for k, v in shown.items() if k != "compatibilityLevel"}}
    return msgspec.structs.replace(decision, answer=shown)


_CONFIG_FIELDS: Final = ("compatibility", "compatibilityLevel", "normalize", "alias", "compatibilityGroup")
_CONFIG_ELSEWHERE: Final = (
    "defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet", "validateFields", "validateRules",
)  # fmt: skip


def _delete_config(call: Call) -> Decision:
    return _config_removed(call, None)


def _delete_subject_config(call: Call) -> Decision:
    return _config_removed(call, call.configured_subject)


def _config_removed(call: Call, subject: Subject | None) -> Decision:
    decision = call.service.remove_config(subject)
    # Confluent answers what was removed, Karapace what holds from now on; the members have different names.
    after = "BACKWARD" if subject is None else call.state.level(None)
    return msgspec.structs.replace(decision, answer={**_config_shown(decision.answer), "compatibility": after})


def _config_shown(config: Config) -> dict[str, Any]:
    return cast("dict[str, Any]", msgspec.to_builtins(config))


def _invalid_level() -> Refused:
    return Refused(
        422,
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
        "forward_transitive, and full_transitive",
    )


# Modes


def _get_mode(call: Call) -> Any:
    return {"mode": call.state.effective_mode(None)}


def _get_subject_mode(call: Call) -> Any:
    subject = call.configured_subject
    mode = call.state.effective_mode(subject) if call.flag("defaultToGlobal") else call.state.mode(subject)
    if mode is None:
        raise Refused(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")
    return {"mode": mode}


def _put_mode(call: Call) -> Decision:
    return _set_mode(call, None)


def _put_subject_mode(call: Call) -> Decision:
    return _set_mode(call, call.configured_subject)


def _set_mode(call: Call, subject: Subject | None) -> Decision:
    mode = call.body().get("mode")
    if not isinstance(mode, str) or mode.upper() not in MODES:
        raise Refused(422, 42204, f"Invalid mode. Valid values are {', '.join(MODES)}")
    decision = call.service.set_mode(subject, cast("Any", mode.upper()), force=call.flag("force"))
    return msgspec.structs.replace(decision, answer={"mode": decision.answer})


def _delete_mode(call: Call) -> Decision:
    decision = call.service.remove_mode(None)
    return msgspec.structs.replace(decision, answer={"mode": decision.answer})


def _delete_subject_mode(call: Call) -> Decision:
    decision = call.service.remove_mode(call.configured_subject)
    return msgspec.structs.replace(decision, answer={"mode": decision.answer})


def _contexts(call: Call) -> Any:
    return call.page(call.state.contexts())


def _master_available(call: Call) -> Any:  # noqa: ARG001
    """Karapace's clients wait for this. A registry that answers takes changes: there is no other one to elect."""
    return {"master_available": True}


# Schemas in answers


def _shown(call: Call, registered: Registered) -> dict[str, Any]:
    return {
        "subject": registered.subject,
        "version": registered.version,
        "id": registered.id,
        **_guid(call, registered.schema),
        **schema_details(registered.schema),
        "schema": _content(call, registered),
        **({"deleted": True} if registered.deleted else {}),
    }


def _guid(call: Call, schema: Schema) -> dict[str, str]:
    """Clients from before Confluent's release 8 refuse answers with this member, so only those get it that say so."""
    return {"guid": guid_of(schema)} if call.takes_unknown_members else {}


def _content(call: Call, registered: Registered) -> str:
    """The schema's text, or with ``format=serialized`` a Protobuf schema as a descriptor in Base64."""
    if registered.schema.type == "PROTOBUF" and call.text("format") == "serialized":
        parsed = call.service.parsed(registered)
        assert isinstance(parsed, ProtobufSchema)
        return parsed.serialized()
    return registered.schema.text


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))


_S: Final = "/subjects/{subject}"
ROUTES: Final[tuple[tuple[str, re.Pattern[str], Callable[[Call], Any]], ...]] = tuple(
    (method, _pattern(path), operation)
    for method, path, operation in (
        ("GET", "/subjects", _list_subjects),
        ("POST", _S, _look_up),
        ("DELETE", _S, _delete_subject),
        ("GET", f"{_S}/versions", _list_versions),
        ("POST", f"{_S}/versions", _register),
        ("GET", f"{_S}/metadata", _latest_with_metadata),
        ("GET", f"{_S}/versions/{{version}}", _get_version),
        ("DELETE", f"{_S}/versions/{{version}}", _delete_version),
        ("GET", f"{_S}/versions/{{version}}/schema", _get_version_text),
        ("GET", f"{_S}/versions/{{version}}/referencedby", _referenced_by),
        ("GET", "/schemas", _list_schemas),
        ("GET", "/schemas/types", _schema_types),
        ("GET", "/schemas/ids/{id}", _get_schema),
        ("GET", "/schemas/ids/{id}/schema", _get_schema_text),
        ("GET", "/schemas/ids/{id}/subjects", _subjects_of_id),
        ("GET", "/schemas/ids/{id}/versions", _versions_of_id),
        ("GET", "/schemas/guids/{guid}", _get_by_guid),
        ("POST", "/compatibility/subjects/{subject}/versions", _check_all),
        ("POST", "/compatibility/subjects/{subject}/versions/{version}", _check_version),
        ("GET", "/config", _get_config),
        ("PUT", "/config", _put_config),
        ("DELETE", "/config", _delete_config),
        ("GET", "/config/{subject}", _get_subject_config),
        ("PUT", "/config/{subject}", _put_subject_config),
        ("DELETE", "/config/{subject}", _delete_subject_config),
        ("GET", "/mode", _get_mode),
        ("PUT", "/mode", _put_mode),
        ("DELETE", "/mode", _delete_mode),
        ("GET", "/mode/{subject}", _get_subject_mode),
        ("PUT", "/mode/{subject}", _put_subject_mode),
        ("DELETE", "/mode/{subject}", _delete_subject_mode),
        ("GET", "/contexts", _contexts),
        ("GET", "/master_available", _master_available),
    )
)

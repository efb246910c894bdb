"""``millstream schema``: register, list, show and check schemas at a registry with Confluent's REST API.

One request a step; what the registry refuses is shown in its own words. A schema's type follows from
the file's name (``.avsc``, ``.proto``, ``.json``), unless ``--type`` says it.
"""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.broker_http import registry_of
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import TIMEOUT_DEFAULT_S, as_json_option, own_registry_option
from millstream.cli.output import emit, print_json, print_table, remark

if TYPE_CHECKING:
    from millstream.client.schema_registry import RegistryAccess, RegistryRefused

_TYPES = {".avsc": "AVRO", ".avro": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
_NOT_COMPATIBLE = 409

subject_argument = click.argument("subject", metavar="SUBJECT", help="Subject, such as orders-value.")
file_argument = click.argument("file", metavar="FILE", help="File with the schema.")
type_option = click.option(
    "--type",
    "kind",
    type=click.Choice(["avro", "json", "protobuf"]),
    help="Type of the schema; by default it follows from the file's name: .avsc, .json or .proto.",
)
reference_option = click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="NAME=SUBJECT:VERSION",
    help="A schema that this one refers to; may be repeated.",
)


class Refusal(CommandFailed):
    """The registry answered with an error. ``status`` is that of HTTP."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


@click.command("register")
@subject_argument
@file_argument
@type_option
@reference_option
@as_json_option
@own_registry_option
def register(
    subject: str, file: str, kind: str | None, references: tuple[str, ...], as_json: bool, registry: str | None
) -> None:
    """Register a schema under a subject, as its next version. A schema that is registered already keeps its version and
    id.
    """
    at = registry_of(registry)
    body = _body(file, kind, references)
    path = f"/subjects/{_quoted(subject)}"
    found = ask(at, "POST", f"{path}/versions", body)
    known = ask(at, "POST", path, body)
    if as_json:
        print_json({"subject": subject, "version": known["version"], "id": found["id"]})
    else:
        remark(f"{subject}: version {known['version']}, id {found['id']}")


@click.command("list")
@as_json_option
@own_registry_option
def list_schemas(as_json: bool, registry: str | None) -> None:
    """List the subjects with their latest versions."""
    at = registry_of(registry)
    entries: list[dict[str, Any]] = []
    for subject in sorted(ask(at, "GET", "/subjects")):
        latest = ask(at, "GET", f"/subjects/{_quoted(subject)}/versions/latest")
        level = ask(at, "GET", f"/config/{_quoted(subject)}?defaultToGlobal=true")
        entries.append(
            {
                "subject": subject,
                "version": latest["version"],
                "id": latest["id"],
                "type": latest.get("schemaType", "AVRO"),
                "compatibility": level["compatibilityLevel"],
            }
        )
    if as_json:
        print_json(entries)
    else:
        print_table(
            ("SUBJECT", "#VERSION", "#ID", "TYPE", "COMPATIBILITY"),
            [tuple(entry.values()) for entry in entries],
            empty="there are no schemas",
        )


@click.command("show")
@subject_argument
@click.option("--version", default="latest", metavar="N", help="Version; latest by default.")
@as_json_option
@own_registry_option
def show(subject: str, version: str, as_json: bool, registry: str | None) -> None:
    """Show a schema: its text on stdout, version and id beside it."""
    at = registry_of(registry)
    found = ask(at, "GET", f"/subjects/{_quoted(subject)}/versions/{_quoted(version)}")
    if as_json:
        print_json(found)
        return
    kind = found.get("schemaType", "AVRO")
    remark(f"{subject}: version {found['version']}, id {found['id']}, {kind}")
    text = found["schema"]
    if kind != "PROTOBUF":
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    emit(text.rstrip("\n") + "\n")


@click.command("check")
@subject_argument
@file_argument
@type_option
@reference_option
@own_registry_option
def check(subject: str, file: str, kind: str | None, references: tuple[str, ...], registry: str | None) -> None:
    """Check whether a schema can become the next version of a subject. Registers nothing."""
    at = registry_of(registry)
    body = _body(file, kind, references)
    path = f"/compatibility/subjects/{_quoted(subject)}/versions?verbose=true"
    found = ask(at, "POST", path, body)
    if not found["is_compatible"]:
        reasons = "".join(f"\n  {reason}" for reason in found.get("messages", ()))
        raise CommandFailed(f"{file} does not fit {subject}:{reasons}")
    remark(f"{file} fits {subject}")


def _body(file: str, kind: str | None, references: tuple[str, ...]) -> dict[str, Any]:
    name = kind.upper() if kind is not None else _TYPES.get(Path(file).suffix.lower())
    if name is None:
        raise WrongUsage(f"the type of {file} does not follow from its name; say --type avro, json or protobuf")
    given = [_reference(text) for text in references]
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return {"schema": text, "schemaType": name, "references": given}


def _reference(text: str) -> dict[str, Any]:
    name, _, target = text.partition("=")
    subject, _, version = target.rpartition(":")
    if not name or not subject or not version.isdecimal():
        raise WrongUsage(f"{text!r} is no reference of the form NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(version)}


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def ask(at: RegistryAccess, method: str, path: str, body: Any = None) -> Any:
    """What the registry answers.

    Raises:
        Refusal: an error of the registry.
        CommandFailed: no answer, or none of a registry; or the login cannot be used.
    """
    from millstream.client.schema_registry import RegistryRefused
    from millstream.client.schema_registry import ask as ask_registry
    from millstream.errors import MillstreamError, Unavailable

    try:
        return ask_registry(at, method, path, body, timeout_s=TIMEOUT_DEFAULT_S)
    except RegistryRefused as refusal:
        raise _refusal(refusal) from None
    except Unavailable as error:
        raise CommandFailed(f"{error.message}; name one with --registry URL") from None
    except MillstreamError as error:
        raise CommandFailed(error.message) from None


def _refusal(refusal: RegistryRefused) -> Refusal:
    sentence = refusal.message
    if refusal.status == _NOT_COMPATIBLE:
        sentence += "; 'millstream schema check' shows the reasons alone"
    return Refusal(f"the registry refuses that: {sentence.rstrip('.')}", refusal.status)

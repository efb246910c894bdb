"""``millstream config``: every setting, as declared or as a running broker has it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.completion import complete_settings
from millstream.cli.connect import admin_client, broker_configs
from millstream.cli.failure import WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, print_facts, print_json, print_paragraphs, print_table
from millstream.config.errors import ConfigError
from millstream.config.node_properties import NODE_PROPERTIES, node_property, unknown_name
from millstream.config.topic_properties import TOPIC_PROPERTIES, topic_property

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.config.property import Property


SOURCES = {1: "topic", 2: "changed while running", 3: "changed while running", 4: "set at start", 5: "default"}


@click.command("list")
@as_json_option
@click.option("--topics", is_flag=True, help="Properties of a topic instead of the broker's settings.")
@click.option("--running", is_flag=True, help="Ask a running broker for the values it has.")
@bootstrap_option
@timeout_option
def list_settings(as_json: bool, topics: bool, running: bool, bootstrap: str, timeout: float) -> None:
    """List every setting with its default and meaning, or with the values of a running broker."""
    if running and topics:
        raise WrongUsage("--running shows the broker's settings; 'millstream topic describe TOPIC' shows a topic's")
    if running:
        _print_running(bootstrap, timeout, as_json=as_json)
        return
    declared = TOPIC_PROPERTIES if topics else NODE_PROPERTIES
    facts = [
        property_facts(declaration, "topic" if topics else "broker") for declaration in _visible(declared.values())
    ]
    if as_json:
        print_json(facts)
        return
    if sys.stdout.isatty():
        print_paragraphs((f"{fact['name']} = {fact['default']}".rstrip(), _in_words(fact)) for fact in facts)
        return
    columns = ("name", "default", "expected", "change", "doc")
    print_table([column.upper() for column in columns], [[fact[column] for column in columns] for fact in facts])


@click.command("show")
@click.argument("name", metavar="NAME", shell_complete=complete_settings, help="A setting, such as num.partitions.")
@as_json_option
def show_setting(name: str, as_json: bool) -> None:
    """Show one setting of the broker or of a topic: default, accepted values, meaning."""
    found: list[dict[str, Any]] = []
    if name in TOPIC_PROPERTIES:
        found.append(property_facts(topic_property(name), "topic"))
    with contextlib.suppress(ConfigError):
        found.append(property_facts(node_property(name), "broker"))
    if not found:
        raise unknown_name(name, {**TOPIC_PROPERTIES, **NODE_PROPERTIES})
    if as_json:
        print_json(found[0] if len(found) == 1 else found)
        return
    for position, fact in enumerate(found):
        if position:
            emit("\n")
        print_facts(fact.items())


def property_facts(declaration: Property[Any], scope: str) -> dict[str, Any]:
    """One declaration as plain values, in the order in which a person wants to read them."""
    live = declaration.live or scope == "topic"
    facts: dict[str, Any] = {
        "name": declaration.name,
        "scope": scope,
        "default": declaration.shown_default(),
        "expected": declaration.form.expected(),
        "change": "live" if live else "restart",
        "doc": declaration.doc,
    }
    if declaration.form.unit:
        facts["unit"] = declaration.form.unit
    if declaration.example:
        facts["example"] = f"{declaration.name}={declaration.example}"
    if declaration.aliases:
        facts["aliases"] = ", ".join(declaration.aliases)
    return facts


def _in_words(fact: dict[str, Any]) -> str:
    when = "may change while the broker runs" if fact["change"] == "live" else "takes effect at the next start"
    return f"{fact['doc']} Expects {fact['expected']}; {when}."


def _visible(declarations: Iterable[Property[Any]]) -> list[Property[Any]]:
    shown = [declaration for declaration in declarations if not declaration.hidden]
    return sorted(shown, key=lambda declaration: declaration.name)


def _print_running(bootstrap: str, timeout: float, *, as_json: bool) -> None:
    entries = broker_configs(admin_client(bootstrap), bootstrap, timeout)
    rows = [(entry.name, entry.value, SOURCES.get(int(entry.source), "unknown")) for entry in entries.values()]
    rows.sort()
    if as_json:
        print_json([{"name": name, "value": value, "source": source} for name, value, source in rows])
    else:
        print_table(["NAME", "VALUE", "SOURCE"], rows)

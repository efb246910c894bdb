"""``millstream config set``: change settings of a running broker.

Sizes and times may be written as ``512MiB`` or ``7d``. What can change while the broker runs is marked so in
``millstream config list``; all others are refused before a broker is asked. A change survives a
restart; ``--unset`` restores the default.
"""

from __future__ import annotations

import click

from millstream.cli.connect import admin_client, answer, explained
from millstream.cli.failure import WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, remark
from millstream.config.node_properties import node_property, without_effect


@click.command("set")
@click.argument(
    "changes", nargs=-1, metavar="[NAME=VALUE]...", help="Settings and their new values, such as max.connections=500."
)
@click.option("--unset", multiple=True, metavar="NAME", help="Take a change back; may be repeated.")
@as_json_option
@bootstrap_option
@timeout_option
def set_settings(
    changes: tuple[str, ...], unset: tuple[str, ...], as_json: bool, bootstrap: str, timeout: float
) -> None:
    """Change settings of a running broker. The change survives a restart."""
    from millstream.cli.confluent import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    wanted = dict(_plain_setting(text) for text in changes or ())
    gone = [_live_name(name) for name in unset or ()]
    if not wanted and not gone:
        raise WrongUsage("nothing to change; give NAME=VALUE or --unset NAME")
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()]
    entries += [ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in gone]
    client = admin_client(bootstrap)
    with explained("broker", bootstrap):
        node_id = min(client.list_topics(timeout=timeout).brokers)
        resource = ConfigResource(ResourceType.BROKER, str(node_id), incremental_configs=entries)
        future = next(iter(client.incremental_alter_configs([resource], request_timeout=timeout).values()))
    answer(future, f"broker {node_id}", bootstrap, timeout + 1)
    if as_json:
        print_json({"broker": node_id, "set": wanted, "unset": gone})
    else:
        for ignored in without_effect(wanted):
            remark(f"{ignored.name}: {ignored.doc}")
        remark(f"changed broker {node_id}")


def _plain_setting(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` as a person writes it → name and Kafka's plain spelling of the value."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise WrongUsage(f"{text!r} is not valid, expected NAME=VALUE, such as max.connections=500")
    declaration = node_property(name.strip())
    return _live_name(name.strip()), declaration.write(declaration.read(value)) or ""


def _live_name(name: str) -> str:
    """The setting's own name; WrongUsage unless it can change while the broker runs."""
    declaration = node_property(name)
    if not declaration.live:
        raise WrongUsage(f"{declaration.name} takes effect at the next start; give it to 'millstream start'")
    return declaration.name

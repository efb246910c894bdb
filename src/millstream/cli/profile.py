"""``millstream profile``: names for brokers, with what it takes to connect to them."""

from __future__ import annotations

from typing import Final

import click

from millstream.cli import identity
from millstream.cli.failure import WrongUsage
from millstream.cli.options import as_json_option
from millstream.cli.output import print_json, print_table, remark
from millstream.config.errors import ConfigError
from millstream.errors import Rejected

_SHOWN: Final = (identity.BOOTSTRAP, "security.protocol", "sasl.username")


def complete_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Profiles that start with what was typed."""
    _ = ctx, param
    return [name for name in identity.profile_names() if name.startswith(incomplete)]


@click.command("create")
@click.argument("name")
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Brokers; several may be given with commas.")
@click.option("--command-config", "file", metavar="FILE", help="Properties of a Kafka client: security.protocol, …")
@click.option("-X", "pairs", multiple=True, metavar="NAME=VALUE", help="One such property; may be repeated.")
@click.option("--use/--no-use", "in_use", default=True, help="Use it where a command names no profile.")
def create(name: str, bootstrap: str, file: str | None, pairs: tuple[str, ...], in_use: bool) -> None:
    """Create a profile, or replace it. Its file can be read by you alone."""
    from millstream.client.schema_registry import unknown_registry_name
    from millstream.client.security import read_security

    found = identity.gathered(None, file, pairs or (), has_address=True)
    found = {identity.BOOTSTRAP: bootstrap} | {key: found[key] for key in found if key != identity.BOOTSTRAP}
    try:
        read_security(found)
        for key in found:
            if (fault := unknown_registry_name(key)) is not None:
                raise Rejected(f"{key}: {fault}")
    except (Rejected, ConfigError) as error:
        raise WrongUsage(str(error)) from None
    path = identity.write_profile(name, found)
    if in_use:
        identity.use_profile(name)
    remark(f"profile '{name}' is in {path}{', and in use' if in_use else ''}")


@click.command("use")
@click.argument("name", shell_complete=complete_profiles)
def use(name: str) -> None:
    """Use a profile where a command names none, neither by --profile nor by --bootstrap."""
    identity.use_profile(name)
    remark(f"profile '{name}' is in use")


@click.command("list")
@as_json_option
def list_profiles(as_json: bool) -> None:
    """List the profiles, without their secrets."""
    current = identity.current_profile()
    rows: list[dict[str, object]] = []
    for name in identity.profile_names():
        found = identity.read_profile(name)
        rows.append({"name": name, "current": name == current, **{key: found.get(key) for key in _SHOWN}})
    if as_json:
        print_json(rows)
        return
    shown = [
        ["*" if row["current"] else "", str(row["name"]), *(str(row[key] or "") for key in _SHOWN)] for row in rows
    ]
    print_table(["", "PROFILE", "BOOTSTRAP", "PROTOCOL", "USER"], shown, empty="no profiles")

"""``millstream user``: who may log in by SCRAM, and with which password.

A password comes from a prompt, from ``--password-file`` or, with ``-``, from standard input; never from the command
line, where every user of the machine could read it. The hash is computed here: the password does not leave this
process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from millstream.cli.administrator import administrator, data_option
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, print_table, remark
from millstream.client.rights import ITERATIONS, read_users, remove_credential, set_password
from millstream.wire.sasl import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_BY_NAME, SCRAM_SHA_512

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.client.rights import Credential

name_argument = click.argument("name", metavar="USER", help="Name of the user.")
mechanism_option = click.option(
    "--mechanism",
    type=click.Choice(list(SCRAM_BY_NAME)),
    default=SCRAM_SHA_512.name,
    show_default=True,
    help="How the user logs in.",
)
iterations_option = click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS,
    show_default=True,
    help="Rounds of the hash: more make guessing slower, and a login, too.",
)
password_option = click.option(
    "--password-file",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="File whose first line is the password; '-' for standard input. Without it the command asks.",
)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (timeout_option, bootstrap_option, data_option):
        command = option(command)
    return command


def _credential_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (_options, password_option, iterations_option, mechanism_option, name_argument):
        command = option(command)
    return command


@click.command("create")
@_credential_options
def create(
    name: str,
    mechanism: str,
    iterations: int,
    password_file: str | None,
    data: str | None,
    bootstrap: str,
    timeout: float,
) -> None:
    """Create a user that logs in with a password."""
    with administrator(data, bootstrap, timeout, f"user '{name}'") as connection:
        if read_users(connection, name):
            raise CommandFailed(f"user '{name}' exists already; 'millstream user alter {name}' gives a new password")
        set_password(connection, name, mechanism, _password(password_file), iterations)
    remark(f"created user '{name}' ({mechanism}); its principal is User:{name}")


@click.command("alter")
@_credential_options
def alter(
    name: str,
    mechanism: str,
    iterations: int,
    password_file: str | None,
    data: str | None,
    bootstrap: str,
    timeout: float,
) -> None:
    """Give a user a new password, or another mechanism beside the ones that it has."""
    with administrator(data, bootstrap, timeout, f"user '{name}'") as connection:
        if not read_users(connection, name):
            raise CommandFailed(f"there is no user '{name}'; 'millstream user create {name}' makes one")
        set_password(connection, name, mechanism, _password(password_file), iterations)
    remark(f"user '{name}' has a new password for {mechanism}")


@click.command("list")
@as_json_option
@_options
def list_users(as_json: bool, data: str | None, bootstrap: str, timeout: float) -> None:
    """List users and how they log in."""
    with administrator(data, bootstrap, timeout, "users") as connection:
        _show(read_users(connection), as_json=as_json)


@click.command("describe")
@name_argument
@as_json_option
@_options
def describe(name: str, as_json: bool, data: str | None, bootstrap: str, timeout: float) -> None:
    """Show how a user logs in."""
    with administrator(data, bootstrap, timeout, f"user '{name}'") as connection:
        found = read_users(connection, name)
    if not found:
        raise CommandFailed(f"there is no user '{name}'")
    _show(found, as_json=as_json)


@click.command("delete")
@name_argument
@_options
def delete(name: str, data: str | None, bootstrap: str, timeout: float) -> None:
    """Delete a user. Its open connections stay until they end."""
    with administrator(data, bootstrap, timeout, f"user '{name}'") as connection:
        found = read_users(connection, name)
        if not found:
            raise CommandFailed(f"there is no user '{name}'")
        for one in found:
            remove_credential(connection, name, one.mechanism)
    remark(f"deleted user '{name}'")


def _show(found: list[Credential], *, as_json: bool) -> None:
    if as_json:
        print_json([one._asdict() for one in found])
    else:
        print_table(["USER", "MECHANISM", "#ITERATIONS"], found, empty="there are no users")


def _password(file: str | None) -> str:
    if file is None:
        if not sys.stdin.isatty():
            raise WrongUsage("standard input is no terminal to ask for the password: give --password-file FILE, or '-'")
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    try:
        with click.open_file(file, encoding="utf-8") as source:
            password = source.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"--password-file: {file} cannot be read: {error}") from None
    if not password:
        raise WrongUsage(f"--password-file: the first line of {file} is empty")
    return password

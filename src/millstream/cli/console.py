"""``millstream console``: pages about clusters in a browser, for any cluster with Kafka's API.

With several clusters each has a name (``--bootstrap NAME=HOST:PORT``), and what is for one of them starts with its
name: ``--config NAME=FILE``, ``--registry NAME=URL``, ``--login NAME=MECHANISM``. Credentials of one cluster are never
sent to another.

It listens on loopback unless ``--listen`` says otherwise. Everybody who reaches it acts as its identity, so one with a
login of its own (``--command-config``, a profile) refuses to listen elsewhere; ``--login`` asks every visitor instead.
"""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click
from msgspec import structs

from millstream.cli import identity
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import bootstraps_option
from millstream.cli.output import remark
from millstream.cli.what_answers import with_port
from millstream.config.errors import ConfigError
from millstream.config.forms import parse_endpoint
from millstream.config.listeners import is_loopback
from millstream.config.masks import Masks
from millstream.config.properties_file import read_properties_file
from millstream.errors import Rejected
from millstream.wire.bearer import OAUTHBEARER

if TYPE_CHECKING:
    from millstream.client.security import Security
    from millstream.console.connect import ConnectAccess
    from millstream.console.settings import Settings
    from millstream.secure.tokens.sign_in import Provider

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})=(.+)", re.DOTALL)
_ALL = ""
"""The name of what is given without one."""
_OIDC = "OIDC"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", _OIDC)


@click.command("console")
@bootstraps_option
@click.option("--config", "configs", multiple=True, metavar="NAME=FILE", help="As --command-config, of one cluster.")
@click.option("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="Where to serve; port 0 chooses one.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name that browsers may use beside --listen's.")
@click.option(
    "--registry",
    "registries",
    envvar="MILLSTREAM_REGISTRY",
    multiple=True,
    metavar="[NAME=]URL",
    help="Schema registry that decodes records.",
)
@click.option(
    "--login",
    "logins",
    multiple=True,
    metavar="[NAME=]MECHANISM",
    help=f"Ask each visitor to log in to the cluster this way: {', '.join(_MECHANISMS)}.",
)
@click.option(
    "--connect",
    "connects",
    multiple=True,
    metavar="[NAME=]URL",
    help="REST API of a worker of Kafka Connect; repeat it for several Connect clusters.",
)
@click.option(
    "--mask",
    "masks",
    multiple=True,
    metavar="PATH",
    help="A field of records that no visitor sees, such as value.card.number, headers.authorization or TOPICS/key.",
)
@click.option("--read-only", is_flag=True, help="Change nothing in any cluster.")
def console(
    bootstraps: tuple[str, ...],
    configs: tuple[str, ...],
    listen: str,
    hosts: tuple[str, ...],
    registries: tuple[str, ...],
    logins: tuple[str, ...],
    connects: tuple[str, ...],
    masks: tuple[str, ...],
    read_only: bool,
) -> None:
    """Serve pages about clusters: topics, messages, groups, transactions, schemas, settings. Until Ctrl-C."""
    from millstream.console.serve import serve

    try:
        host, port = parse_endpoint(listen)
    except ValueError:
        raise WrongUsage(f"--listen: {listen!r} is not valid, expected HOST:PORT") from None
    addresses = _by_name("--bootstrap", bootstraps)
    if len(addresses) > 1 and _ALL in addresses:
        raise WrongUsage("--bootstrap: with several clusters each needs a name, NAME=HOST:PORT")
    workers: dict[str, list[str]] = {}
    for value in connects:
        name, url = _split(value)
        workers.setdefault(name, []).append(url)
    given = _Given(
        _by_name("--config", configs), _by_name("--registry", registries), _by_name("--login", logins), workers
    )
    for option, values in zip(_OPTIONS, given, strict=True):
        for name in values:
            if name not in addresses and not (option == "--login" and name == _ALL):
                known = ", ".join(addresses) if _ALL not in addresses else "none with a name"
                said = f"there is no cluster {name!r}" if name else "name the cluster that it is for, NAME=…"
                raise WrongUsage(f"{option}: {said}; --bootstrap has {known}")
    allowed = tuple(sorted({"127.0.0.1", "localhost", "::1", host, *hosts}))
    wrong = next((mask for mask in masks if not Masks().accepts_words((mask,))), None)
    if wrong is not None:
        raise WrongUsage(f"--mask: {wrong!r} is not valid, expected [TOPICS/]key|value|headers[.FIELD…]")
    clusters = [
        structs.replace(_settings(name, address, given, allowed, read_only=read_only), masks=masks)
        for name, address in addresses.items()
    ]
    for each in clusters:
        if not is_loopback(host) and each.login is None and each.security != type(each.security)():
            raise WrongUsage(
                f"--listen: everybody who reaches {host} would act as this command; listen on 127.0.0.1, or let "
                "visitors log in with --login"
            )
    with _bound(host, port) as listener:
        at = listener.getsockname()
        shown = f"[{at[0]}]" if ":" in at[0] else at[0]
        said = clusters[0].bootstrap if _ALL in addresses else ", ".join(addresses)
        serve(clusters, listener, lambda: remark(f"the console of {said} is at http://{shown}:{at[1]}/"))


_OPTIONS = ("--config", "--registry", "--login", "--connect")


class _Given(NamedTuple):
    """What is given for clusters, by their names; in the order of ``_OPTIONS``."""

    configs: Mapping[str, str]
    registries: Mapping[str, str]
    logins: Mapping[str, str]
    connects: Mapping[str, Sequence[str]]


def _split(value: str) -> tuple[str, str]:
    """Name of a cluster, ``_ALL`` without one, and what is given for it."""
    named = _NAMED.fullmatch(value)
    return (named[1], named[2]) if named else (_ALL, value)


def _by_name(option: str, values: Sequence[str]) -> dict[str, str]:
    """What is given for each cluster."""
    found: dict[str, str] = {}
    for value in values:
        name, text = _split(value)
        if name in found:
            raise WrongUsage(f"{option}: {name or 'a value without a name'} is given twice")
        found[name] = text
    return found


def _settings(name: str, bootstrap: str, given: _Given, hosts: tuple[str, ...], *, read_only: bool) -> Settings:
    """The settings of one cluster."""
    from millstream.client.schema_registry import REGISTRY_URL, is_registry_name, registry_access
    from millstream.console.settings import Settings

    properties, security = _identity(name, given.configs)
    of_registry = {each: text for each, text in properties.items() if is_registry_name(each)}
    url = of_registry.pop(REGISTRY_URL, None)
    registry = given.registries.get(name, url)
    login = given.logins.get(name, given.logins.get(_ALL))
    if login is not None and login not in _MECHANISMS:
        raise WrongUsage(f"--login: {login!r} is not one of {', '.join(_MECHANISMS)}")
    bootstrap = ",".join(with_port(address.strip()) for address in bootstrap.split(","))
    if registry is not None:
        try:
            registry_access(registry, of_registry, security, bootstrap)  # refuses what is not valid
        except Rejected as error:
            raise WrongUsage(error.message) from None
    if login is not None and ("@" in (registry or "") or any(".auth." in each for each in of_registry)):
        raise WrongUsage("--login: the schema registry is read as each visitor; leave out its own login")
    provider = _provider(properties) if login == _OIDC else None
    connects = _connects(given.connects.get(name, ()), properties, login)
    return Settings(
        bootstrap,
        security,
        registry,
        OAUTHBEARER if provider is not None else login,
        read_only,
        hosts,
        of_registry,
        name=name,
        connects=connects,
        issuer="" if provider is None else provider.issuer,
        redirect_uri="" if provider is None else provider.redirect_uri,
        provider=provider,
    )


def _provider(properties: Mapping[str, str]) -> Provider:
    """The OpenID provider that a file names."""
    from millstream.config.properties.sign_in import read_sign_in
    from millstream.secure.tokens.sign_in import provider_of

    try:
        found = provider_of(read_sign_in(properties))
    except ConfigError as error:
        raise WrongUsage(f"--login: {error.message}") from None
    if found is None or not found.client_id:
        raise WrongUsage(f"--login: {_OIDC} needs console.oidc.issuer.url and console.oidc.client.id in the file")
    if importlib.util.find_spec("joserfc") is None:
        raise WrongUsage(f"--login: {_OIDC} needs the extra 'security': pip install 'millstream[security]'")
    return found


def _connects(urls: Sequence[str], properties: Mapping[str, str], login: str | None) -> tuple[ConnectAccess, ...]:
    """How to reach the workers of Kafka Connect: those of the option, else that of the file."""
    from millstream.console.connect import URL, connect_access

    urls = urls or [url for url in properties.get(URL, "").split(",") if url.strip()]
    try:
        found = tuple(connect_access(url.strip(), properties) for url in urls)
    except Rejected as error:
        raise WrongUsage(f"--connect: {error.message}") from None
    if login is not None and any(access.proves_itself for access in found):
        raise WrongUsage("--login: every visitor would act as the console at Kafka Connect; leave out its login")
    return found


def _identity(name: str, configs: Mapping[str, str]) -> tuple[dict[str, str], Security]:
    """Properties and security of one cluster. The command's own are for a cluster without a name."""
    from millstream.client.security import read_security

    if name == _ALL:
        return identity.properties(), identity.security()
    if identity.properties():
        raise WrongUsage("--command-config, -X and --profile are for one cluster; use --config NAME=FILE")
    found = {each: text for _, each, text in read_properties_file(configs[name])} if name in configs else {}
    try:
        return found, read_security(found)
    except Rejected as error:
        raise WrongUsage(f"--config: {name}: {error.message}") from None


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise CommandFailed(f"--listen: {host}:{port} cannot be used: {error.strerror or error}") from None
    return listener

"""``millstream console``: pages about a cluster in a browser, for any cluster with Kafka's API.

It listens on loopback unless ``--listen`` says otherwise. Everybody who reaches it acts as its identity, so one with a
login of its own (``--command-config``, a profile) refuses to listen elsewhere; ``--login`` asks every visitor instead.
"""

from __future__ import annotations

import socket

import click

from millstream.cli import identity
from millstream.cli.broker_http import registry_of
from millstream.cli.failure import CommandFailed, WrongUsage, with_port
from millstream.cli.options import bootstrap_option
from millstream.cli.output import remark
from millstream.config.forms import parse_endpoint
from millstream.config.listeners import is_loopback

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@click.command("console")
@bootstrap_option
@click.option("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="Where to serve; port 0 chooses one.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name that browsers may use beside --listen's.")
@click.option("--registry", envvar="MILLSTREAM_REGISTRY", metavar="URL", help="Schema registry that decodes records.")
@click.option("--login", type=click.Choice(_MECHANISMS), help="Ask each visitor to log in to the cluster this way.")
@click.option("--read-only", is_flag=True, help="Change nothing in the cluster.")
def console(
    bootstrap: str, listen: str, hosts: tuple[str, ...], registry: str | None, login: str | None, read_only: bool
) -> None:
    """Serve pages about a cluster: topics, messages, groups, transactions, schemas, settings. Until Ctrl-C."""
    from millstream.console.serve import serve
    from millstream.console.settings import Settings

    try:
        host, port = parse_endpoint(listen)
    except ValueError:
        raise WrongUsage(f"--listen: {listen!r} is not valid, expected HOST:PORT") from None
    from millstream.client.schema_registry import REGISTRY_URL, is_registry_name

    of_registry = {name: text for name, text in identity.properties().items() if is_registry_name(name)}
    registry = registry or of_registry.pop(REGISTRY_URL, None)
    if registry is not None:
        registry_of(registry, bootstrap)  # refuses what is not valid
    if login is not None and ("@" in (registry or "") or any(".auth." in name for name in of_registry)):
        raise WrongUsage("--login: the schema registry is read as each visitor; leave out its own login")
    bootstrap = ",".join(with_port(address.strip()) for address in bootstrap.split(","))
    security = identity.security()
    if not is_loopback(host) and login is None and security != type(security)():
        raise WrongUsage(
            f"--listen: everybody who reaches {host} would act as this command; listen on 127.0.0.1, or let visitors "
            "log in with --login"
        )
    names = {"127.0.0.1", "localhost", "::1", host, *hosts}
    settings = Settings(bootstrap, security, registry, login, read_only, tuple(sorted(names)), of_registry)
    with _bound(host, port) as listener:
        at = listener.getsockname()
        shown = f"[{at[0]}]" if ":" in at[0] else at[0]
        serve(settings, listener, lambda: remark(f"the console of {bootstrap} is at http://{shown}:{at[1]}/"))


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise CommandFailed(f"--listen: {host}:{port} cannot be used: {error.strerror or error}") from None
    return listener

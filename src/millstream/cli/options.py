"""Options that several commands share, declared once."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from millstream.cli import identity

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
TIMEOUT_DEFAULT_S = 15.0
_GIVEN: Final = "millstream.identity"

_Command = TypeVar("_Command", bound="Callable[..., object] | click.Command")


def _chosen_bootstrap(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """The address, and with it the identity of the command (``identity``): the options of it are read before."""
    _ = param
    given = ctx.meta.get(_GIVEN, {})
    profile, file, pairs = (given.get(f"identity_{name}") for name in ("profile", "file", "pairs"))
    identity.use(lambda: identity.gathered(profile, file, pairs or (), has_address=value is not None))
    return identity.bootstrap() or BOOTSTRAP_DEFAULT if value is None else value


def _note(ctx: click.Context, param: click.Parameter, value: object) -> None:
    ctx.meta.setdefault(_GIVEN, {})[param.name] = value


def _complete_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    _ = ctx, param
    return [name for name in identity.profile_names() if name.startswith(incomplete)]


def _identity_options(command: _Command) -> _Command:
    """How to prove oneself: ``--command-config``, ``-X``, ``--profile``."""
    own: Any = {"is_eager": True, "expose_value": False, "callback": _note}
    for option in (
        click.option(
            "-X", "identity_pairs", multiple=True, metavar="NAME=VALUE", help="One property of --command-config.", **own
        ),
        click.option(
            "--command-config",
            "identity_file",
            metavar="FILE",
            help="Properties of a Kafka client: security.protocol, ssl.*, sasl.*, and of a schema registry's.",
            **own,
        ),
        click.option(
            "--profile",
            "identity_profile",
            metavar="NAME",
            help="Profile to use ('millstream profile').",
            shell_complete=_complete_profiles,
            **own,
        ),
    ):
        command = option(command)
    return command


def bootstrap_option(command: _Command) -> _Command:
    """``--bootstrap``, and how to prove oneself there."""
    return click.option(
        "--bootstrap",
        envvar="MILLSTREAM_BOOTSTRAP",
        default=None,
        show_default=BOOTSTRAP_DEFAULT,
        callback=_chosen_bootstrap,
        metavar="HOST:PORT",
        help="Broker to connect to; several may be given with commas.",
    )(_identity_options(command))


def _chosen_bootstraps(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return value if value and _chosen_bootstrap(ctx, param, value[0]) else (_chosen_bootstrap(ctx, param, None),)


def bootstraps_option(command: _Command) -> _Command:
    """``--bootstrap`` of one cluster, or of several with names."""
    return click.option(
        "--bootstrap",
        "bootstraps",
        envvar="MILLSTREAM_BOOTSTRAP",
        multiple=True,
        show_default=BOOTSTRAP_DEFAULT,
        callback=_chosen_bootstraps,
        metavar="[NAME=]HOST:PORT",
        help="Brokers of a cluster; several may be given with commas. Repeat it with names for several clusters.",
    )(_identity_options(command))


REGISTRY_DEFAULT: Final = "http://127.0.0.1:9644"
_registry: Final[dict[str, Any]] = {
    "envvar": "MILLSTREAM_REGISTRY",
    "metavar": "URL",
    "help": "Schema registry to ask: a broker's HTTP address, or any with Confluent's REST API; else "
    "schema.registry.url of --command-config.",
}
registry_option = click.option("--registry", default=None, show_default=REGISTRY_DEFAULT, **_registry)


def own_registry_option(command: _Command) -> _Command:
    """``--registry`` of a command that asks nothing else, and how to prove oneself there."""
    return click.option(
        "--registry", default=None, show_default=REGISTRY_DEFAULT, callback=_chosen_registry, **_registry
    )(_identity_options(command))


def _chosen_registry(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The registry, and with it the identity of the command."""
    _chosen_bootstrap(ctx, param, value)
    return value


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs instead of a table.")
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=3600),
    default=TIMEOUT_DEFAULT_S,
    metavar="SECONDS",
    help="How long to wait for the broker.",
)

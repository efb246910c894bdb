"""Options that several commands share, declared once."""

import click

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
TIMEOUT_DEFAULT_S = 15.0

bootstrap_option = click.option(
    "--bootstrap",
    envvar="MILLSTREAM_BOOTSTRAP",
    default=BOOTSTRAP_DEFAULT,
    metavar="HOST:PORT",
    help="Broker to connect to; several may be given with commas.",
)
registry_option = click.option(
    "--registry",
    envvar="MILLSTREAM_REGISTRY",
    default="http://127.0.0.1:9644",
    metavar="URL",
    help="Schema registry to ask: a broker's HTTP address, or any with Confluent's REST API.",
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs instead of a table.")
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=3600),
    default=TIMEOUT_DEFAULT_S,
    metavar="SECONDS",
    help="How long to wait for the broker.",
)

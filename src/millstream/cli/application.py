"""The typer application: commands put together under their nouns."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from millstream import __version__
from millstream.cli.config import config_application
from millstream.cli.config_set import set_settings
from millstream.cli.consume import consume
from millstream.cli.failure import WrongUsage
from millstream.cli.group import group_application
from millstream.cli.log import log_application
from millstream.cli.output import emit
from millstream.cli.pipeline import pipeline_application
from millstream.cli.produce import produce
from millstream.cli.top import top
from millstream.cli.topic import topic_application
from millstream.cli.trim import trim

application = typer.Typer(
    name="millstream",
    help="A Kafka-API event-streaming store. Start a broker, work with topics, records and consumer groups.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"millstream {__version__}\n")
        raise typer.Exit


@application.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """A Kafka-API event-streaming store. Start a broker, work with topics, records and consumer groups."""


@application.command(
    "start",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def start_command(context: typer.Context) -> None:
    """Start a broker and serve until it is told to stop."""
    from millstream.cli.start import start

    raise typer.Exit(start(context.args))


application.command("produce")(produce)
application.command("consume")(consume)
application.command("top")(top)
topic_application.command("trim")(trim)
application.add_typer(topic_application)
application.add_typer(group_application)
config_application.command("set")(set_settings)
application.add_typer(config_application)
application.add_typer(log_application)
application.add_typer(pipeline_application)


def run_application(words: list[str]) -> int:
    """Run one command; usage errors leave as ``WrongUsage``."""
    command = typer.main.get_command(application)
    try:
        result = command.main(words, prog_name="millstream", standalone_mode=False)
    except typer.TyperException as problem:
        if type(problem).__name__ == "NoArgsIsHelpError":  # typer keeps the class to itself
            emit(problem.format_message().strip() + "\n")
            return 0
        context = getattr(problem, "ctx", None)
        path = context.command_path if context is not None else "millstream"
        sentence = problem.format_message().rstrip(".")
        joint = " " if sentence.endswith("?") else "; "
        raise WrongUsage(f"{sentence[:1].lower()}{sentence[1:]}{joint}'{path} --help' shows what it takes") from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0

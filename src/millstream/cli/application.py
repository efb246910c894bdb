"""The commands of ``millstream``, put together under their nouns.

A command's module is imported when the command runs, or when a help page lists it, so a command starts without the
imports of others.
"""

from __future__ import annotations

import importlib
import re
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from millstream import __version__
from millstream.cli.failure import WrongUsage
from millstream.cli.output import emit

if TYPE_CHECKING:
    from collections.abc import Mapping


_LIKENESS = 0.7
"""How like a command a mistyped word must be to be taken for it, from 0 to 1 (``difflib``)."""


class Noun(click.Group):
    """A group of commands. Without a command it prints its help.

    ``members`` maps each command's name to ``module:attribute``; the order is that of the help
    page.
    """

    def __init__(self, name: str, help: str, members: Mapping[str, str | click.Command]) -> None:  # noqa: A002
        super().__init__(name, help=help, no_args_is_help=True)
        self._members = members

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        found = self._members.get(cmd_name)
        if not isinstance(found, str):
            return found
        module, _, attribute = found.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with what may have been meant where there is no such command."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            meant = get_close_matches(word, self._members, n=1, cutoff=_LIKENESS) or self._below(word)
            hint = (
                f"; did you mean {' or '.join(repr(f'{ctx.command_path} {path}') for path in meant[:3])}?"
                if meant
                else ""
            )
            raise click.UsageError(f"there is no command {word!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def _below(self, word: str) -> list[str]:
        """Commands that are called ``word``, or almost so, under the nouns of this group."""
        nouns = {name: member for name, member in self._members.items() if isinstance(member, Noun)}
        every = [(name, command) for name, noun in nouns.items() for command in noun._members]
        near = get_close_matches(word, {command for _, command in every}, n=1, cutoff=_LIKENESS)
        return [f"{name} {command}" for name, command in every if command in near]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with the whole first sentence of its help."""
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert command is not None
            rows.append((name, command.get_short_help_str(limit=sys.maxsize)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.command(
    "start",
    add_help_option=False,
    help="Start a broker and serve until SIGTERM or Ctrl-C.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.pass_context
def start_command(context: click.Context) -> None:
    """Not reached with ``start`` as the first word; see ``__main__``."""
    from millstream.cli.start import start

    raise click.exceptions.Exit(start(context.args))


application = Noun(
    "millstream",
    "A Kafka-API event-streaming store. Start a broker, work with topics, records and consumer groups.",
    {
        "start": start_command,
        "stop": "millstream.cli.stop:stop",
        "status": "millstream.cli.status:status",
        "produce": "millstream.cli.produce:produce",
        "consume": "millstream.cli.consume:consume",
        "top": "millstream.cli.top:top",
        "apply": "millstream.cli.apply:apply",
        "bundle": "millstream.cli.bundle:bundle",
        "tune": "millstream.cli.tune:tune",
        "console": "millstream.cli.console:console",
        "cluster": Noun(
            "cluster",
            "Show the state of the cluster and its brokers; move replicas and leaders, let brokers leave.",
            {
                "health": "millstream.cli.cluster:health",
                "brokers": "millstream.cli.cluster:brokers",
                "drain": "millstream.cli.cluster_changes:drain",
                "undrain": "millstream.cli.cluster_changes:undrain",
                "decommission": "millstream.cli.cluster_changes:decommission",
                "rebalance": "millstream.cli.cluster_changes:rebalance",
                "move": "millstream.cli.cluster_changes:move",
                "recover": "millstream.cli.cluster_recover:recover",
                "take-over": "millstream.cli.cluster_take_over:take_over",
            },
        ),
        "dev": Noun(
            "dev",
            "Run a cluster of several brokers on this machine.",
            {"cluster": "millstream.cli.dev:cluster", "restart": "millstream.cli.dev:restart"},
        ),
        "tier": Noun(
            "tier",
            "Show what is archived in the object store, check it, and recover topics from it.",
            {
                "status": "millstream.cli.tier:status",
                "recover": "millstream.cli.tier:recover",
                "verify": "millstream.cli.tier:verify",
                "scrub": "millstream.cli.tier:scrub",
            },
        ),
        "cache": Noun(
            "cache",
            "Show what the caches of a broker serve, and how large the warm cache must be.",
            {"status": "millstream.cli.cache:status"},
        ),
        "topic": Noun(
            "topic",
            "Create, list, describe, alter, trim and delete topics.",
            {
                "create": "millstream.cli.topic:create",
                "list": "millstream.cli.topic:list_topics",
                "describe": "millstream.cli.topic:describe",
                "alter": "millstream.cli.topic:alter",
                "delete": "millstream.cli.topic:delete",
                "repair": "millstream.cli.topic_repair:repair",
                "trim": "millstream.cli.trim:trim",
            },
        ),
        "events": Noun(
            "events",
            "Create event topics; push, consume, export and import events: JSON with raw data.",
            {
                "create": "millstream.cli.events:create",
                "push": "millstream.cli.events:push",
                "consume": "millstream.cli.events:consume",
                "describe": "millstream.cli.events:describe",
                "export": "millstream.cli.events_copy:export_topic",
                "import": "millstream.cli.events_copy:import_topic",
                "verify": "millstream.cli.log:verify",
            },
        ),
        "group": Noun(
            "group",
            "List, describe, reset and delete consumer groups.",
            {
                "list": "millstream.cli.group:list_groups",
                "describe": "millstream.cli.group:describe",
                "reset": "millstream.cli.group:reset",
                "delete": "millstream.cli.group:delete",
            },
        ),
        "user": Noun(
            "user",
            "Create, list and delete users that log in with a password.",
            {
                "create": "millstream.cli.user:create",
                "list": "millstream.cli.user:list_users",
                "describe": "millstream.cli.user:describe",
                "alter": "millstream.cli.user:alter",
                "delete": "millstream.cli.user:delete",
            },
        ),
        "acl": Noun(
            "acl",
            "Say who may do what.",
            {
                "create": "millstream.cli.acl:create",
                "list": "millstream.cli.acl:list_acls",
                "describe": "millstream.cli.acl:describe",
                "alter": "millstream.cli.acl:alter",
                "delete": "millstream.cli.acl:delete",
            },
        ),
        "quota": Noun(
            "quota",
            "Limit what users, client ids and addresses use.",
            {
                "create": "millstream.cli.quota:create",
                "list": "millstream.cli.quota:list_quotas",
                "describe": "millstream.cli.quota:describe",
                "alter": "millstream.cli.quota:alter",
                "delete": "millstream.cli.quota:delete",
            },
        ),
        "security": Noun(
            "security",
            "Make authorities and certificates of brokers and users.",
            {
                "init": "millstream.cli.security:init",
                "renew": "millstream.cli.security:renew",
                "cert": Noun(
                    "cert",
                    "Certificates of single brokers and users.",
                    {"add": "millstream.cli.security:add"},
                ),
            },
        ),
        "profile": Noun(
            "profile",
            "Name brokers and what it takes to connect to them.",
            {
                "create": "millstream.cli.profile:create",
                "use": "millstream.cli.profile:use",
                "list": "millstream.cli.profile:list_profiles",
            },
        ),
        "transaction": Noun(
            "transaction",
            "List and describe transactional ids, and abort a transaction that hangs in a partition.",
            {
                "list": "millstream.cli.transaction:list_transactions",
                "describe": "millstream.cli.transaction:describe",
                "abort": "millstream.cli.transaction:abort",
                "find-hanging": "millstream.cli.transaction_hanging:find_hanging",
            },
        ),
        "config": Noun(
            "config",
            "Show and change settings.",
            {
                "list": "millstream.cli.config:list_settings",
                "show": "millstream.cli.config:show_setting",
                "set": "millstream.cli.config_set:set_settings",
            },
        ),
        "logger": Noun(
            "logger",
            "Show and set which lines a broker writes, by room.",
            {"list": "millstream.cli.logger:list_loggers", "set": "millstream.cli.logger:set_logger"},
        ),
        "backup": Noun(
            "backup",
            "Make, list, verify, restore and drill backups of a whole cluster.",
            {
                "create": "millstream.cli.backup:create",
                "list": "millstream.cli.backup:list_backups",
                "verify": "millstream.cli.backup:verify",
                "restore": "millstream.cli.backup:restore",
                "drill": "millstream.cli.backup:drill",
            },
        ),
        "log": Noun(
            "log",
            "Look into a broker's data directory: verify it, show what is in its files.",
            {"verify": "millstream.cli.log:verify", "dump": "millstream.cli.log:dump"},
        ),
        "schema": Noun(
            "schema",
            "Register, list, show and check schemas of records.",
            {
                "register": "millstream.cli.schema:register",
                "list": "millstream.cli.schema:list_schemas",
                "show": "millstream.cli.schema:show",
                "check": "millstream.cli.schema:check",
            },
        ),
        "pipeline": Noun(
            "pipeline",
            "Run declared pipelines: topics into Delta, Iceberg and Parquet tables and into topics, through Spark.",
            {
                "check": "millstream.cli.pipeline:check",
                "plan": "millstream.cli.pipeline:plan",
                "run": "millstream.cli.pipeline:run",
                "serve": "millstream.cli.pipeline_serve:serve",
                "backfill": "millstream.cli.pipeline:backfill",
                "replay-dlq": "millstream.cli.pipeline:replay_dlq",
                "export": "millstream.cli.pipeline:export",
                "status": "millstream.cli.pipeline:status",
                "stop": "millstream.cli.pipeline:stop",
            },
        ),
        "job": Noun(
            "job",
            "Work on whole topics, done by Spark.",
            {
                "merge": "millstream.cli.job_rewrite:merge",
                "reencode": "millstream.cli.job_rewrite:reencode",
                "repartition": "millstream.cli.job:repartition",
                "scrub": "millstream.cli.job_scrub:scrub",
                "table-maintain": "millstream.cli.job_table_maintain:table_maintain",
            },
        ),
    },
)
application = click.version_option(
    __version__, prog_name="millstream", message="%(prog)s %(version)s", help="Print the version and leave."
)(application)
application.context_settings = {"help_option_names": ["-h", "--help"], "show_default": True}


_CLICKS_WORDS = {"a valid integer range": "a whole number", "a valid float range": "a number"}
"""click's name for a type, and what people call it."""

_RANGE = re.compile(r"is not in the range (?:(\S+)<=)?x(?:>=(\S+)|<=(\S+))")


def _range_in_words(found: re.Match[str]) -> str:
    """``0 is not in the range x>=1`` as ``0 is less than 1``."""
    low, least, high = found.groups()
    if least is not None:
        return f"is less than {least}"
    return f"is more than {high}" if low is None else f"is not between {low} and {high}"


def run_application(words: list[str]) -> int:
    """Run one command; usage errors leave as ``WrongUsage``."""
    try:
        result = application.main(words, prog_name="millstream", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as request:
        emit(request.format_message().strip() + "\n")
        return 0
    except click.ClickException as problem:
        context = getattr(problem, "ctx", None)
        path = context.command_path if context is not None else "millstream"
        sentence = problem.format_message().rstrip(".")
        for clicks, ours in _CLICKS_WORDS.items():
            sentence = sentence.replace(clicks, ours)
        sentence = _RANGE.sub(_range_in_words, sentence)
        joint = " " if sentence.endswith("?") else "; "
        raise WrongUsage(f"{sentence[:1].lower()}{sentence[1:]}{joint}'{path} --help' shows what it takes") from None
    except click.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0

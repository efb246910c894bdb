"""``millstream tune``: what of this machine is off for a broker, and how it is set.

A dry run by default. ``--apply`` writes, ``--undo`` takes it back, ``--script`` prints what would be written.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option
from millstream.cli.output import FIRST_TASK, count_progress, emit, print_json, print_table, remark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.config.settings import Settings
    from millstream.tune.finding import Finding


@click.group("tune", invoke_without_command=True)
@click.option("--config", "config_file", metavar="FILE", help="The broker's properties file.")
@click.option("--set", "pairs", metavar="NAME=VALUE", multiple=True, help="One setting of the broker; may be repeated.")
@click.option("--root", default="/", metavar="DIR", help="Directory with the machine's proc, sys and etc.")
@click.option(
    "--all", "advice", is_flag=True, help="Advice, too: what no measurement of this project has shown to pay."
)
@click.option("--apply", "applies", is_flag=True, help="Set what is off, and keep the old values. Needs root.")
@click.option("--undo", "undoes", is_flag=True, help="Set the old values again. Needs root.")
@click.option("--script", "prints", is_flag=True, help="Print a shell script that sets what is off.")
@as_json_option
@click.pass_context
def tune(
    context: click.Context,
    config_file: str | None,
    pairs: Sequence[str],
    root: str,
    advice: bool,
    applies: bool,
    undoes: bool,
    prints: bool,
    as_json: bool,
) -> None:
    """Show which settings of this machine slow a broker down, and set them."""
    if context.invoked_subcommand is not None:
        return
    if applies + undoes + prints > 1:
        raise WrongUsage("--apply, --undo and --script exclude each other; give one of them")
    if prints and as_json:
        raise WrongUsage("--script prints a script, not JSON; leave out --json")
    if not os.path.isdir(root):
        raise WrongUsage(f"--root {root} is no directory; 'millstream tune --help' shows what it takes")
    root = os.path.abspath(root)
    if (applies or undoes) and root == "/" and os.geteuid() != 0:
        raise CommandFailed("settings of the kernel need root: use sudo, or look at what --script prints")
    from millstream.tune import applying
    from millstream.tune.checks import look
    from millstream.tune.facts import Broker, Facts

    facts = Facts(root, Broker.here(broker_settings(config_file, pairs)))
    try:
        if undoes:
            undone = applying.undo(facts)
            if as_json:
                print_json({"restored": undone})
                return
            remark(f"{len(undone)} files have their old content again" if undone else "nothing was changed before")
            return
        findings = look(facts)
        if prints:
            emit(applying.script(facts, findings, advice=advice))
            return
        if applies:
            findings = applying.apply(facts, findings, advice=advice)
    except OSError as error:
        raise CommandFailed(f"{error.filename or root}: {(error.strerror or str(error)).lower()}") from None
    _show(findings, as_json=as_json, advice=advice)


def broker_settings(config_file: str | None, pairs: Sequence[str]) -> Settings:
    """The settings that a broker started with the same options has."""
    from millstream.config.load import load_settings

    return load_settings(config_file, list(pairs), {})


def _show(findings: list[Finding], *, as_json: bool, advice: bool) -> None:
    from millstream.tune.finding import Outcome, described

    if as_json:
        print_json([described(one) for one in findings])
        return
    rows = [
        (
            one.name,
            f"{one.seen.outcome}{' (advice)' if one.advice and one.seen.outcome is Outcome.OFF else ''}",
            one.seen.value,
            one.seen.wanted,
            one.seen.reason or (one.why if one.seen.outcome is Outcome.OFF else ""),
        )
        for one in findings
    ]
    print_table(["SETTING", "STATE", "VALUE", "WANTED", "REASON"], rows)
    wrong = [one for one in findings if one.seen.outcome is Outcome.OFF and (advice or not one.advice)]
    writable = [one for one in wrong if one.seen.writes]
    if wrong:
        remark(
            f"\n{len(wrong)} off; 'millstream tune --apply{' --all' if advice else ''}' sets {len(writable)} of "
            "them (as root), --script prints how, --undo takes it back"
        )


@tune.command("bench")
@click.option("--config", "config_file", metavar="FILE", help="The broker's properties file.")
@click.option("--set", "pairs", metavar="NAME=VALUE", multiple=True, help="One setting of the broker; may be repeated.")
@click.option(
    "--seconds", type=click.FloatRange(1, 600), default=30.0, metavar="SECONDS", help="How long to measure, about."
)
@as_json_option
def bench_command(config_file: str | None, pairs: Sequence[str], seconds: float, as_json: bool) -> None:
    """Measure disk, loopback and processor as a broker uses them; the result goes to DATA/machine.json."""
    import msgspec

    from millstream.config.errors import ConfigError
    from millstream.errors import MillstreamError
    from millstream.tune import machine_file
    from millstream.tune.bench import ROUNDS, bench

    settings = broker_settings(config_file, pairs)
    total = 0

    def count(name: str) -> None:
        nonlocal total
        total += 1
        bar.update(FIRST_TASK, description=name, completed=total)

    try:
        with count_progress(f"{ROUNDS} rounds", None) as bar:
            machine = bench(settings, seconds, count)
        path = machine_file.write(settings.data_dir, machine)
    except ConfigError:
        raise
    except MillstreamError as error:
        raise CommandFailed(error.message) from None
    except OSError as error:
        raise CommandFailed(f"{settings.data_dir}: {(error.strerror or str(error)).lower()}") from None
    if as_json:
        print_json(msgspec.to_builtins(machine))
        return
    rows = [
        (one.name, f"{one.median:,g}", f"{one.low:,g}-{one.high:,g}", f"{one.p99:,g}", one.unit)
        for one in machine.figures
    ]
    print_table(["MEASURE", "#MEDIAN", "#ROUNDS", "#P99", "UNIT"], rows)
    emit(f"\n{machine.stolen_percent:g} % of the time was stolen by the host. ")
    if machine.proposals:
        emit(f"Proposed: {', '.join(f'{name}={value}' for name, value in machine.proposals.items())}\n")
    else:
        emit("The settings fit this machine.\n")
    remark(f"written to {path}; the next start of the broker says what is proposed")

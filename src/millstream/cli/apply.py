"""``millstream apply``: topics, users, rights, quotas and schemas as a file says.

Runs may overlap: a step that is refused because another run has done it is passed over, and the rest is planned again
from what the cluster has then. A step that is refused for another reason ends the run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from millstream.cli import identity
from millstream.cli.administrator import administrator, data_option
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, registry_option, timeout_option
from millstream.cli.output import emit, print_json, remark
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.apply.cluster import Registry
    from millstream.apply.model import Loaded
    from millstream.apply.plan import Step
    from millstream.client.connection import Connection

_SIGNS: Final = {"create": "+", "change": "~", "delete": "-"}
_DONE_BY_ANOTHER: Final = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)
"""Why a step is refused that another run has done since the plan was made."""
_LOOKS: Final = 20
_LOOK_PAUSE_S: Final = 0.1
"""The broker that is asked may learn of the other run's change a moment later."""


@click.command("apply")
@click.option("--file", "-f", "file", required=True, type=click.Path(), metavar="FILE", help="YAML file to apply.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove what the file lacks, of the kinds that it has: topics with their records.",
)
@as_json_option
@registry_option
@data_option
@bootstrap_option
@timeout_option
def apply(
    file: str,
    dry_run: bool,
    prune: bool,
    as_json: bool,
    registry: str | None,
    data: str | None,
    bootstrap: str,
    timeout: float,
) -> None:
    """Make topics, users, rights, quotas and schemas what a file says."""
    from millstream.apply.cluster import present
    from millstream.apply.plan import plan
    from millstream.config.yaml_file import InvalidFile, complaints

    loaded = _load(file)
    own = None if not loaded.wanted.schemas else _OwnRegistry(registry, "" if data is not None else bootstrap)
    with administrator(data, bootstrap, timeout, file) as connection:
        login = identity.security().login
        user = login.username if data is None and login is not None else ""

        def look() -> list[Step]:
            found = plan(loaded, present(connection, own, loaded), prune=prune, login=user)
            if found.problems:
                raise WrongUsage(str(InvalidFile(complaints(loaded.document, found.problems))))
            return found.steps

        steps = look() if dry_run else _carry_out(connection, own, look, timeout, as_json=as_json)
    _report(steps, as_json=as_json, dry_run=dry_run)


def _load(file: str) -> Loaded:
    from millstream.apply.model import load
    from millstream.config.yaml_file import InvalidFile

    try:
        return load(file)
    except InvalidFile as error:
        raise WrongUsage(error.message) from None


class _OwnRegistry:
    """The registry of ``--registry``, as the command's caller."""

    def __init__(self, url: str | None, bootstrap: str) -> None:
        from millstream.cli.broker_http import registry_of

        self._at = registry_of(url, bootstrap)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """As `millstream.apply.cluster.Registry`."""
        from millstream.cli.schema import Refusal, ask

        try:
            return 200, ask(self._at, method, path, body)
        except Refusal as refusal:
            return refusal.status, str(refusal)


def _carry_out(
    connection: Connection,
    registry: Registry | None,
    look: Callable[[], list[Step]],
    timeout: float,
    *,
    as_json: bool,
) -> list[Step]:
    """Do what ``look`` plans, and return the steps that this run has done."""
    from millstream.apply.cluster import carry_out
    from millstream.errors import Rejected

    done: list[Step] = []
    left, looks = look(), _LOOKS
    while left:
        step = left[0]
        try:
            carry_out(connection, registry, step.action, int(timeout * 1000))
        except Rejected as error:
            while error.code in _DONE_BY_ANOTHER and looks and step in left:
                time.sleep(_LOOK_PAUSE_S)
                left, looks = look(), looks - 1
            if step not in left:
                continue
            raise CommandFailed(
                f"{step.verb} {step.what}: {error.message}; {len(done)} of {len(done) + len(left)} steps are done, "
                f"{len(left)} are left: mend what is wrong and apply the file again",
                error.code.name,
            ) from None
        done.append(step)
        left = left[1:]
        if not as_json:
            _show(step)
    return done


def _show(step: Step) -> None:
    emit(f"{_SIGNS[step.verb]} {step.what}\n" + "".join(f"    {detail}\n" for detail in step.details))


def _report(steps: list[Step], *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        listed = [{"verb": one.verb, "what": one.what, "details": list(one.details)} for one in steps]
        print_json({"dry_run": dry_run, "done": 0 if dry_run else len(steps), "steps": listed})
        return
    if dry_run:
        for step in steps:
            _show(step)
    if not steps:
        remark("nothing to do: the cluster is as the file says")
    elif dry_run:
        remark(f"{_count(len(steps))} to do; nothing was changed")
    else:
        remark(f"{_count(len(steps))} done")


def _count(number: int) -> str:
    return f"{number} step" if number == 1 else f"{number} steps"

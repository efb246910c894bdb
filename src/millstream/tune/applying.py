"""Makes the writes of findings, and takes them back.

::

    plan(findings) ──► note old values (one file, synced) ──► write, write, …        undo: write old values, delete note

The note has, for each file, its content before the first change: a second ``apply`` adds files and never replaces what
is noted. Files of the kernel are noted as well; a restart of the machine forgets their changes, and an undo after it
writes the values that they have anyway.

**Crash.** Every changed file is noted, since the note is on the disk before the first write, and is deleted after the
last one of an undo. **Failure.** A write that the kernel refuses (no right, a device that takes no such value) changes
nothing; its finding becomes *not possible here* with the kernel's reason, and the others are made. A note that cannot
be written stops everything with OSError. **Bad input.** A note that cannot be read raises ``Rejected``.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import Rejected
from millstream.tune.finding import Finding, Outcome, Seen, Write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.tune.facts import Facts

NOTE: Final = "var/lib/millstream-tune/before.json"
SYSCTL_FILE: Final = "etc/sysctl.d/90-millstream.conf"
UNIT: Final = "millstream-tune.service"
UNIT_FILE: Final = f"etc/systemd/system/{UNIT}"
UNIT_LINK: Final = f"etc/systemd/system/multi-user.target.wants/{UNIT}"
_SYSCTLS: Final = "proc/sys/"


class Before(msgspec.Struct, frozen=True):
    """A file before the first change: its content, or None if it did not exist."""

    path: str
    content: str | None


def to_apply(findings: Iterable[Finding], *, advice: bool) -> list[Finding]:
    """The findings that ``--apply`` mends: those that are off and have writes, advice only if wanted."""
    return [
        one for one in findings if one.seen.outcome is Outcome.OFF and one.seen.writes and (advice or not one.advice)
    ]


def lasting(facts: Facts, findings: Iterable[Finding], *, advice: bool) -> list[Write]:
    """Files that make the settings survive a restart of the machine: kernel parameters by ``sysctl.d``, the rest by a
    unit that applies them again. The unit is left out without systemd.
    """
    writes = [write for one in findings for write in one.seen.writes]
    if not writes:
        return []
    files: list[Write] = []
    named = [one for one in writes if one.path.startswith(_SYSCTLS)]
    if named:
        kept = {
            name: value
            for line in (facts.text(SYSCTL_FILE) or "").splitlines()
            if not line.startswith("#") and (parts := line.partition("="))[1]
            for name, value in [(parts[0].strip(), parts[2].strip())]
        }
        for one in named:
            kept[one.path.removeprefix(_SYSCTLS).replace("/", ".")] = one.text.strip()
        body = "".join(f"{name} = {value}\n" for name, value in sorted(kept.items()))
        files.append(
            Write(SYSCTL_FILE, f"# Written by 'millstream tune --apply'; 'millstream tune --undo' removes it.\n{body}")
        )
    if len(named) < len(writes) and facts.exists("run/systemd/system"):
        files.append(Write(UNIT_FILE, unit(advice=advice)))
        files.append(Write(UNIT_LINK, f"../{UNIT}", link=True))
    return files


def unit(command: str = "", *, advice: bool) -> str:
    """The unit that applies the settings at each start of the machine, before the broker. ``command`` runs the CLI."""
    command = command or f"{sys.executable} -m millstream.cli"
    return (
        "# Sets this machine for Millstream, before its broker, whose own unit may not change the kernel's settings.\n"
        "[Unit]\nDescription=Settings of this machine for Millstream\nBefore=millstream.service\n"
        "After=systemd-sysctl.service\n\n"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\n"
        f"ExecStart={command} tune --apply{' --all' if advice else ''}\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def apply(facts: Facts, findings: list[Finding], *, advice: bool) -> list[Finding]:
    """Mend what is off. Returns all findings, those that were mended as *applied*.

    Raises:
        OSError: the old values, or the lasting files, could not be written.
        Rejected: the note of an earlier run cannot be read.
    """
    chosen = to_apply(findings, advice=advice)
    lasting_files = lasting(facts, chosen, advice=advice)
    writes = [write for one in chosen for write in one.seen.writes]
    _note(facts, [*writes, *lasting_files])
    done = {one.name: _make(facts, one) for one in chosen}
    for write in lasting_files:
        _replace(facts.path(write.path), write.text, link=write.link)
    return [done.get(one.name, one) for one in findings]


def undo(facts: Facts) -> list[str]:
    """Give every changed file its old content. Returns the paths; empty if nothing was changed.

    Raises:
        OSError: a file could not be written, of several the last; the others have their old content, and the note
            stays, so that another undo can finish.
        Rejected: the note cannot be read.
    """
    before = _noted(facts)
    failed: OSError | None = None
    for one in reversed(before):
        try:
            _restore(facts, one)
        except OSError as error:
            failed = OSError(error.errno, error.strerror, f"/{one.path}")
    if failed is not None:
        raise failed
    if before:
        os.unlink(facts.path(NOTE))
    return [one.path for one in before]


def _restore(facts: Facts, before: Before) -> None:
    path = facts.path(before.path)
    if _content(path) == before.content:
        return  # its write was refused, or the machine was started again since
    if before.content is None:
        os.unlink(path)
    elif _is_lasting(before.path):
        _replace(path, before.content, link=os.path.islink(path))
    elif os.path.exists(path):
        _write(path, before.content if facts.root != "/" else _word(before.content))


def script(facts: Facts, findings: Iterable[Finding], *, advice: bool) -> str:
    """A shell script that does what ``apply`` does, without its undo."""
    chosen = to_apply(findings, advice=advice)
    lines = ["#!/bin/sh", "# Settings of this machine for Millstream; run it as root.", "set -e"]
    for one in chosen:
        lines.append(f"\n# {one.name}: {one.seen.value}. {one.why}")
        lines += [f"echo {_quoted(write.text.strip())} > {_quoted(f'/{write.path}')}" for write in one.seen.writes]
    files = lasting(facts, chosen, advice=advice)
    if files:
        lines.append("\n# For the next start of the machine.")
    for file in files:
        if file.link:
            lines.append(f"systemctl enable {_quoted(UNIT)}")
        else:
            lines.append(f"cat > {_quoted(f'/{file.path}')} <<'END'\n{file.text}END")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _make(facts: Facts, finding: Finding) -> Finding:
    """Make the writes of one finding."""
    seen = finding.seen
    outcome, reason = Outcome.APPLIED, seen.reason
    for write in seen.writes:
        try:
            _write(facts.path(write.path), write.text)
        except OSError as error:
            outcome = Outcome.IMPOSSIBLE
            reason = f"/{write.path} refuses {write.text.strip()}: {(error.strerror or str(error)).lower()}"
    return msgspec.structs.replace(finding, seen=Seen(outcome, seen.value, seen.wanted, reason))


def _note(facts: Facts, writes: list[Write]) -> None:
    """Have the present content of all files to be changed on the disk."""
    before = _noted(facts)
    known = {one.path for one in before}
    missing = [Before(one.path, _content(facts.path(one.path))) for one in writes if one.path not in known]
    if missing:
        path = facts.path(NOTE)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        _replace(path, msgspec.json.encode([*before, *missing]).decode(), link=False)


def _noted(facts: Facts) -> list[Before]:
    try:
        with open(facts.path(NOTE), "rb") as file:
            return msgspec.json.decode(file.read(), type=list[Before])
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        raise Rejected(
            f"/{NOTE} cannot be read ({error}): it has the old values; set them by hand, then delete it"
        ) from None


def _content(path: str) -> str | None:
    """As it is now; a link's target. None if there is nothing."""
    if os.path.islink(path):
        return os.readlink(path)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def _word(content: str) -> str:
    """What the kernel takes back: the choice of ``always [madvise] never``, anything else as it is."""
    marked = re.search(r"\[(\S+)\]", content)
    return f"{marked[1]}\n" if marked else content


def _is_lasting(path: str) -> bool:
    return path.startswith("etc/")


def _write(path: str, text: str) -> None:
    """Write a file of the kernel: one write, without creating it."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(fd, text.encode(errors="surrogateescape"))
    finally:
        os.close(fd)


def _replace(path: str, text: str, *, link: bool) -> None:
    """Write an ordinary file, or a link, in one step that survives a crash."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    if _content(path) == text and os.path.islink(path) == link:
        return
    new = f"{path}.new"
    if os.path.lexists(new):
        os.unlink(new)
    if link:
        os.symlink(text, new)
    else:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    os.rename(new, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

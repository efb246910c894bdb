"""Commands on the pages of the docs exist, and have the options that the pages give them."""

import re
import shlex
from pathlib import Path

import click
import pytest

from millstream.cli import identity
from millstream.cli.application import application
from millstream.cli.failure import WrongUsage
from millstream.cli.start import start_parser

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted(one for one in (ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?m)^(?:\$ |    )?(millstream (?:\\\n|'[^']*'|[^\n'])*)$|`(millstream [^`\n]+)`")
IN_SHORT = re.compile(r" \| |…|\.\.\.|\[|[^ ]/[^ ]* \w+ /")


def commands_of(page):
    """The words of each command, without ``millstream``, pipes, and what is written only in part."""
    for found in COMMAND.finditer(page.read_text(encoding="utf-8")):
        line = (found[1] or found[2]).replace("\\\n", " ")
        line = re.split(r" [|>&] ?|  #| # ", line)[0] if found[1] else line
        if not IN_SHORT.search(line):
            yield shlex.split(line)[1:]


def problem(words):
    """What the command line says of unknown words; what is left out, such as an argument, is none."""
    try:
        if words[:1] == ["start"]:
            start_parser().parse_args(words[1:])
            return None
        command, context = application, None
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            context = click.Context(command, parent=context, info_name=command.name)
            name, *words = words
            command = command.get_command(context, name)
            if command is None:
                return f"there is no command {name}"
        if not isinstance(command, click.Group):
            command.make_context(command.name, list(words), parent=context)
    except (click.NoSuchOption, WrongUsage) as error:
        return str(error)
    except click.BadParameter:
        return None  # something is left out, or a file is not here
    except click.UsageError as error:
        return error.format_message()
    except click.exceptions.Exit:
        return None  # --help
    finally:
        identity.use(dict)  # the options of a page are for no later command of this process
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_known(page):
    found = {" ".join(words): problem(words) for words in commands_of(page)}
    assert {words: what for words, what in found.items() if what} == {}


def test_commands_are_found_on_the_pages():
    assert sum(1 for page in PAGES for _ in commands_of(page)) > 80


@pytest.mark.parametrize(
    "line",
    [
        "config set --topic flights storage.mode=tiered",
        "tier restore",
        "topic create a --conf b=c",
        "start --date .",
        "tier status one two",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(line):
    assert problem(shlex.split(line))


@pytest.mark.parametrize(
    "line", ["tier", "group describe", "topic create t --config a=b", "start --data .", "--version"]
)
def test_a_command_that_exists_is_fine(line):
    assert problem(shlex.split(line)) is None

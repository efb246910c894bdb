"""Paste the code blocks of pages, as a newcomer does: in their order, page after page, into one directory and broker.

::

    python tools/docs_check.py README.md docs/start.md docs/events.md
    python tools/docs_check.py --slow docs/*.md

Blocks of ``bash``, ``sh`` and ``python`` run, and each must end with exit code 0; other languages are shown only. A
comment in the line before a block says where it does not belong:

- ``<!-- docs-check: skip: needs Kubernetes -->``: it is never run, for the reason given;
- ``<!-- docs-check: slow -->``: it takes minutes or a SparkSession, and runs with ``--slow``;
- ``<!-- docs-check: slow, continues -->``: the same, of Python, in the process of the Python block before it.

A block without a language, or with prompts (``console``), cannot be pasted, and is a finding. ``millstream start``
starts a broker on free ports in ``./data`` of the directory unless one runs there, and the addresses of the pages stand
for its own. Pages follow each other without a clean-up, so that a page which needs another's topics, or stumbles over
them, is found.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(
    r"^(?:[ ]*<!-- docs-check: (?P<mark>[^\n]*?) -->\n+)?(?P<indent>[ ]*)```(?P<language>[\w-]*)[^\n]*\n"
    r"(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
RUN = ("bash", "sh", "python")
CONTINUES = "slow, continues"
TIMEOUT_S = 900
"""Bound of one block. It only ends a hang: one run of a pipeline took 155 s on two cores that six programs shared."""
GIVEN = ("TMPDIR", "JAVA_HOME", "MILLSTREAM_CLASS_ARCHIVE")

START = """\
#!/bin/bash
# The command line of this checkout; `start` uses the ports of this check, and returns when the broker serves.
if [ "$1" != start ]; then exec {python} -m millstream.cli "$@"; fi
[ -e {data}/broker.json ] && exit 0
{python} -m millstream.cli start --data {data} --listen {kafka} --http {http} --shards 1 --memory 128MiB \\
    --set shards.pin=false \\
    </dev/null >>{data}.log 2>&1 &
for _ in $(seq 600); do [ -e {data}/broker.json ] && exit 0; sleep 0.1; done
cat {data}.log >&2; exit 1
"""
MAKE = '#!/bin/bash\n# What is installed here is installed already.\n[ "$*" = setup ]\n'


class Block(NamedTuple):
    """A block of a page. ``mark`` is the text of its comment."""

    page: Path
    line: int
    language: str
    code: str
    mark: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        indent = len(match["indent"])
        code = "".join(one[indent:] if one[:indent].isspace() else one for one in match["code"].splitlines(True))
        found.append(Block(page, line, match["language"], code, match["mark"] or ""))
    return found


def joined(blocks: list[Block]) -> list[Block]:
    """The blocks, each that continues another one put behind it."""
    found: list[Block] = []
    for block in blocks:
        if block.mark == CONTINUES:
            first = max(index for index, one in enumerate(found) if one.language == "python")
            found[first] = found[first]._replace(code=f"{found[first].code}\n{block.code}")
        else:
            found.append(block)
    return found


def faults(block: Block) -> str:
    """What keeps a block from being pasted; empty if nothing does."""
    if block.mark not in ("", "slow", CONTINUES) and not re.fullmatch(r"skip: \w.+", block.mark):
        return f"the mark {block.mark!r} is neither 'slow' nor 'skip: REASON'"
    if not block.language:
        return "the block does not say its language"
    if block.language == "console" or (block.language in RUN and re.search(r"^[$>] ", block.code, re.MULTILINE)):
        return "the block has prompts, so that it cannot be pasted"
    return ""


class Desk:
    """The directory, the commands and the broker of one check. A context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kafka, self.http = (f"127.0.0.1:{port}" for port in free_ports())
        tools = directory / ".venv" / "bin"
        tools.mkdir(parents=True)
        data = directory / "data"
        start = START.format(python=sys.executable, data=data, kafka=self.kafka, http=self.http)
        # No link: Python looks for its environment beside the path that it is started by.
        python = f'#!/bin/bash\nexec {sys.executable} "$@"\n'
        for name, text in (("millstream", start), ("make", MAKE), ("python", python)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self.environment = {
            "HOME": str(directory),
            "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
            "MILLSTREAM_BOOTSTRAP": self.kafka,
            "MILLSTREAM_REGISTRY": f"http://{self.http}",
            **{name: text for name, text in os.environ.items() if name in GIVEN or name.startswith("AWS_")},
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if (self.directory / "data" / "broker.json").exists():
            self.run("bash", "millstream stop --data ./data")

    def run(self, language: str, code: str) -> subprocess.CompletedProcess[str]:
        """Run a block; variables that a shell exports stay for the next ones."""
        code = code.replace("127.0.0.1:9092", self.kafka).replace("127.0.0.1:9644", self.http)
        if language == "python":
            command = [sys.executable, "-c", code]
        else:
            kept = "[ ! -e .exported ] || . ./.exported"
            command = ["bash", "-ec", f"{kept}\n{code}\nexport -p > .exported"]
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def free_ports() -> list[int]:
    """Two ports that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return [one.getsockname()[1], other.getsockname()[1]]


def check(pages: list[Path], *, slow: bool) -> list[str]:
    """Run the blocks of pages; returns what was found."""
    found: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="docs-check-", ignore_cleanup_errors=True) as directory,
        Desk(Path(directory)) as desk,
    ):
        for page in pages:
            desk.run("bash", "millstream start --data ./data")
            for block in joined(blocks_of(page)):
                fault = faults(block)
                if fault:
                    found.append(f"{block.where}: {fault}")
                elif block.language in RUN and not block.mark.startswith("skip") and (slow or block.mark != "slow"):
                    found += ran(desk, block)
    return found


def ran(desk: Desk, block: Block) -> list[str]:
    """Run one block; what is wrong with it."""
    try:
        done = desk.run(block.language, block.code)
    except subprocess.TimeoutExpired:
        return [f"{block.where}: has not ended after {TIMEOUT_S} s"]
    if done.returncode:
        return [f"{block.where}: exit code {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"]
    return []


def leave(*_: object) -> None:
    """End in order, so that the broker of the check is stopped. Asked again, go on with that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main(arguments: list[str] | None = None) -> int:
    """Check the pages that are named; exit code 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--slow", action="store_true", help="run blocks that are marked slow, too")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, leave)
    found = check([page.resolve() for page in given.pages], slow=given.slow)
    for one in found:
        print(one)
    print(f"{len(given.pages)} pages, {len(found)} findings")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

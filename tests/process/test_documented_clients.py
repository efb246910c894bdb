"""The examples of docs/clients.md and docs/start.md, run as they stand but for the broker's address.

Those of kcat run in ``conformance.kcat``.
"""

import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

DOCS = Path(__file__).resolve().parents[2] / "docs"


def examples(page, language):
    """(heading, code) of every fenced block of one language."""
    heading = ""
    found = []
    for block in re.finditer(
        r"^## ([^\n]+)$|^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
    ):
        if block[1]:
            heading = block[1]
        elif block[2] == language:
            found.append((heading, block[3]))
    return found


def fresh(code, broker):
    """The example against this broker, with topics and groups that no other test has."""
    suffix = uuid.uuid4().hex[:8]
    for name in ("orders", "invoices", "shipments", "notes", "billing", "accounting", "warehouse"):
        code = re.sub(rf"\b{name}\b", f"{name}-{suffix}", code)
    return code.replace("127.0.0.1:9092", broker.bootstrap)


def named(cases):
    cases = list(cases)
    assert cases, "the page has lost its examples"
    return [pytest.param(code, id=heading) for heading, code in cases]


@pytest.mark.parametrize("code", named(examples("clients.md", "python")))
def test_a_python_client_reads_back_what_it_wrote(broker, code):
    script = fresh(code, broker)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 10


def test_the_first_records_of_the_start_page_go_as_written(broker):
    script = "\n".join(code for heading, code in examples("start.md", "bash") if heading == "First records")
    script = fresh(script, broker)
    command = f"{sys.executable} -m millstream.cli"
    script = f'millstream() {{ {command} "$@"; }}\n{script}'
    environment = {"PATH": "/usr/bin:/bin", "MILLSTREAM_BOOTSTRAP": broker.bootstrap}
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, timeout=90, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"bob 2 pears", "alice 1 apple"} == {
        " ".join(line.split()[2:]) for line in lines if re.match(r"\d \d (bob|alice)", line)
    }
    assert "nothing was changed, --execute does it" in done.stderr
    assert "moved group 'billing-" in done.stderr


def test_the_settings_of_the_start_page_are_accepted(tmp_path):
    from millstream.config import load_settings

    file = tmp_path / "broker.properties"
    [(_, properties)] = examples("start.md", "properties")
    file.write_text(properties)
    assert load_settings(str(file)).memory_bytes == 2**30

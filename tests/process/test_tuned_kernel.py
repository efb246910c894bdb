"""The real kernel takes the writes and takes the old values back, in namespaces of the test's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.tune.applying import NOTE, SYSCTL_FILE
from waits import PATIENCE_S

PARAMETER = "/proc/sys/net/ipv4/tcp_max_syn_backlog"

PROGRAM = f"""
import subprocess
for directory in ("/etc", "/var/lib"):
    subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True)
from millstream.config.load import load_settings
from millstream.tune import applying
from millstream.tune.checks import look
from millstream.tune.facts import Broker, Facts
def value():
    with open("{PARAMETER}") as file:
        return file.read()
facts = Facts("/", Broker.here(load_settings(None, [], {{}})))
def found():
    return [one for one in look(facts) if one.name == "syn_backlog"]
with open("{PARAMETER}", "w") as file:
    file.write("1000")
print([one.seen.outcome.value for one in applying.apply(facts, found(), advice=False)], value().strip())
print([one.seen.outcome.value for one in applying.apply(facts, found(), advice=False)], value().strip())
with open("/{SYSCTL_FILE}") as file:
    print(file.read().splitlines()[1])
print(applying.undo(facts), value().strip())
import os
print(os.path.exists("/{SYSCTL_FILE}"), os.path.exists("/{NOTE}"))
"""


def may_have_namespaces():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "-n", "true"], capture_output=True).returncode == 0


@pytest.mark.process
@pytest.mark.skipif(not may_have_namespaces(), reason="needs root and namespaces of its own")
def test_a_kernel_parameter_is_set_and_set_back():
    before = Path(PARAMETER).read_text()
    done = subprocess.run(
        ["unshare", "-m", "-n", sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['applied'] 4096",
        "['good'] 4096",
        "net.ipv4.tcp_max_syn_backlog = 4096",
        f"['{PARAMETER[1:]}', '{SYSCTL_FILE}'] 1000",
        "False False",
    ]
    assert Path(PARAMETER).read_text() == before

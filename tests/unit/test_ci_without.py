"""``.ci/without``: a command runs as on a machine that lacks the named programs, and has all others."""

import os
import subprocess
from pathlib import Path

from waits import PATIENCE_S

WITHOUT = Path(__file__).resolve().parents[2] / ".ci" / "without"


def program(directory, name, text="#!/bin/sh\necho here\n"):
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(text)
    (directory / name).chmod(0o755)


def without(tmp_path, *arguments):
    program(tmp_path / "mixed", "mvn")
    program(tmp_path / "mixed", "neighbour")
    program(tmp_path / "other", "java")
    search_path = f"{tmp_path / 'mixed'}:{tmp_path / 'other'}:/usr/bin:/bin"
    environment = {**os.environ, "PATH": search_path, "JAVA_HOME": "/opt/java"}
    return subprocess.run(
        [WITHOUT, *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_hidden_programs_are_not_found_and_their_neighbours_are(tmp_path):
    script = "neighbour; command -v java; command -v mvn; command -v kcat; printenv JAVA_HOME; command -v ls"
    done = without(tmp_path, "kcat", "java", "mvn", "--", "bash", "-c", script)
    here, ls = done.stdout.splitlines()
    assert here == "here"
    assert os.path.basename(ls) == "ls"


def test_the_exit_code_is_the_commands(tmp_path):
    assert without(tmp_path, "mvn", "--", "sh", "-c", "exit 7").returncode == 7


def test_a_command_line_without_a_command_is_refused(tmp_path):
    done = without(tmp_path, "mvn", "--")
    assert done.returncode == 2
    assert "usage" in done.stderr

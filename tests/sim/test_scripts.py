"""Directed scenarios of Raft: the transcript of each script in ``scripts`` is what happens, and no invariant breaks.

After a change that is meant to alter them run ``python -m sim.raft.script tests/sim/scripts/*.txt`` and
read the difference.
"""

from pathlib import Path

import pytest

from sim.raft.script import play

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_does_what_its_transcript_says(path):
    text = path.read_text()
    assert play(text) == text


def test_an_unknown_command_and_one_before_the_cluster_are_refused():
    with pytest.raises(ValueError, match="begins with nodes"):
        play("> wait 5\n")
    with pytest.raises(ValueError, match="no such command"):
        play("> nodes 1\n> dance 1\n")

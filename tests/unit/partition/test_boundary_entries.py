"""Every entry of reactor and helpers that runs a verb of a partition passes the boundary.

A verb is called inside of ``try`` with the handler ``except Exception`` that hands over to ``failed``, is handed to
``guard`` or ``run`` (then it is no call here), or is called by a function that is a verb itself: those are listed with
their room, and the same is asked of their callers.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "millstream"

PRIMITIVES = frozenset(
    (
        # of a log
        *("became_durable", "read_cached", "append_control", "append_entries", "trim_prefix", "trim_local"),
        *("truncate_to", "truncate_suffix", "save_vote", "fold_controls", "read_entries", "read_entries_cold"),
        *("roll", "write_out", "when_written", "producer_snapshot", "snapshot_offset"),
        *("read_cold", "offset_for_timestamp", "snapshot_for"),
        # of an archive
        *("next_upload", "next_spill", "next_part", "in_memory", "joined_end", "find_replaced"),
        # of a group
        *("replicate", "propose_log_start", "propose_owner_entry", "drain", "on_message", "deadline_passed"),
        "peer_lost",
        # of producers and transactions
        *("ask_verification", "verified"),
    )
)

ROOMS = ("raft/replicated.py", "raft/sole_voter.py", "raft/writes.py", "raft/saving.py")
ROOMS += ("raft/sending.py", "raft/installing.py", "raft/arriving.py", "storage/log/", "core/")
"""Verbs among themselves."""

OTHERS = (
    "admin/",
    "cli/",
    "client/",
    "cluster/",
    "diaspora/",
    "events/",
    "objects/",
    "peers/",
    "pipeline/",
    "registry/",
)
OTHERS += ("spark/", "testing/", "wire/")
"""Without partitions, or with the controller's log only, whose fault is the shard's."""

VERBS = {
    "partition/append/checks.py": ("_append", "_append_trusted", "_at_events", "_settle"),
    "partition/delete_records.py": ("_delete_records", "propose"),
    "partition/read/epoch_end.py": ("_epoch_end",),
    "partition/events/feeds.py": ("_feed", "_fetch_data"),
    "partition/read/list_offsets.py": ("_list_offset", "_find", "_largest"),
    "partition/append/markers.py": ("_append",),
    "partition/append/restored.py": ("_append", "_replicate", "_restore_batches"),
    "partition/read/batches.py": ("_read_here", "_read_older", "_read", "read_cold"),
    "partition/replace_segments.py": ("_replace_segments",),
    "partition/replica/following.py": ("move_start",),
    "raft/deadlines.py": ("_due",),
    "storage/maintenance/checkpoint.py": ("_LogCapture", "add_snapshot"),
    "storage/maintenance/housekeeping.py": ("_seal", "retain"),
    "storage/recovery/summary.py": ("summarize",),
    "storage/compaction/compaction.py": ("_look_at",),
    "tiers/archiver.py": ("_drop_local", "_retain", "_advance", "_settle_uploads", "_upload"),
    "tiers/partition_archive.py": ("propose", "joined_end"),
    "tiers/replacing.py": ("_begin", "replace"),
    "tiers/shared_joins.py": ("_target",),
    "tiers/shared_manifest.py": ("shared_manifest",),
    "tiers/shared_uploads.py": ("_read",),
    "tiers/shared_wal.py": ("_read",),
}
"""Functions that are verbs themselves."""

NAMESAKES = {
    ("app/shard_main.py", "drain"): "connections are drained",
    ("coordinator/verified_commits.py", "ask_verification"): "of `InternalLog`, which passes the boundary",
    ("coordinator/verified_commits.py", "verified"): "of `InternalLog`, which passes the boundary",
    ("tiers/archiver.py", "_advance"): "by its own verbs, each of which was handed to `guard`",
    ("tiers/archiver.py", "_settle_uploads"): "by its own verbs, each of which was handed to `guard`",
    ("tiers/archiver.py", "propose"): "by its own verbs, each of which was handed to `guard`",
}


def passes_the_boundary(node, parents):
    while node in parents:
        parent = parents[node]
        if isinstance(parent, ast.Try) and node in parent.body and any(map(hands_over, parent.handlers)):
            return True
        if isinstance(parent, (ast.FunctionDef, ast.Lambda)):
            return False
        node = parent
    return False


def hands_over(handler):
    """``except Exception as error: … .failed(verb, error)``"""
    return (
        isinstance(handler.type, ast.Name)
        and handler.type.id == "Exception"
        and any(
            isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "failed"
            for one in ast.walk(handler)
        )
    )


def functions_around(node, parents):
    while node in parents:
        node = parents[node]
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name


def unguarded(path, text):
    """(line, verb) of each call of a verb that does not pass the boundary."""
    tree = ast.parse(text)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    own = VERBS.get(path, ())
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name not in PRIMITIVES and name not in own:
            continue
        if passes_the_boundary(node, parents) or (path, name) in NAMESAKES:
            continue
        if not any(around in own for around in functions_around(node, parents)):
            yield node.lineno, name


FILES = [
    str(path.relative_to(SOURCE))
    for path in sorted(SOURCE.rglob("*.py"))
    if not str(path.relative_to(SOURCE)).startswith((*ROOMS, *OTHERS))
]


def test_every_entry_that_runs_a_verb_passes_the_boundary():
    found = [
        f"{path}:{line}: {verb} is called outside of the boundary"
        for path in FILES
        for line, verb in unguarded(path, (SOURCE / path).read_text())
    ]
    assert not found, "\n".join(found)


def test_the_tables_name_what_is_there():
    for path, names in VERBS.items():
        defined = {
            node.name
            for node in ast.walk(ast.parse((SOURCE / path).read_text()))
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
        assert set(names) <= defined, path


CALL = "        log.became_durable(1)\n"
TRY = f"def entry(log):\n    try:\n{CALL}"


@pytest.mark.parametrize(
    ("entry", "is_found"),
    [
        ("def entry(log):\n    log.became_durable(1)\n", True),
        (f"{TRY}    except ValueError as error:\n        log.failed('commit', error)\n", True),
        (f"{TRY}    except Exception:\n        pass\n", True),
        (f"{TRY}    except Exception as error:\n        log.failed('commit', error)\n", False),
        ("def entry(log):\n    log.guard('commit', log.became_durable, 1)\n", False),
    ],
)
def test_it_is_told_which_entry_does_not(entry, is_found):
    assert bool(list(unguarded("storage/wal/wal.py", entry))) is is_found

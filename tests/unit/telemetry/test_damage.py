"""Damaged places in the metrics: each once, by topic, partition, offset and file, and never more than there is room."""

import os

from millstream.cli.exposition import Exposition
from millstream.telemetry.damage import SLOTS, Damage, DamageBoard
from millstream.telemetry.metrics import StatsSlab
from millstream.telemetry.render import render


def test_a_place_is_noted_once_and_seen_by_the_other_process():
    board = DamageBoard()
    if not (pid := os.fork()):
        for _ in range(3):
            board.put("a/b/7", 12, "/d/00.log")
        os._exit(0)
    os.waitpid(pid, 0)
    assert board.read() == [Damage("a/b", 7, 12, "/d/00.log")]


def test_what_does_not_fit_is_left_out():
    board = DamageBoard()
    board.put("t/0", 0, "x" * 5000)
    for offset in range(2 * SLOTS):
        board.put("t/0", offset, "f")
    assert [place.offset for place in board.read()] == list(range(SLOTS))


def test_the_page_shows_it_with_its_labels_escaped():
    slab = StatsSlab(0, "shard")
    assert b"log_damage" not in render([slab])
    slab.damage.put("orders/3", 40, '/a "b"\\c')
    slab.damage.put("controller", -1, "f")
    text = render([slab]).decode()
    assert r'millstream_log_damage{topic="orders",partition="3",offset="40",file="/a \"b\"\\c"} 1' in text
    assert 'millstream_log_damage{topic="controller",partition="-1",offset="-1",file="f"} 1' in text
    assert Exposition(text, 0.0).value("millstream_log_damage", topic="orders") == 1

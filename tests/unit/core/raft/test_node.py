import random

import pytest

from millstream.core.raft.node import Node


def test_positions_are_dense_and_commit_follows_what_is_durable():
    node = Node(term=3, next_index=10)
    assert node.commit_index == 10
    assert [node.propose(2), node.propose(5), node.propose(1)] == [10, 12, 17]
    assert node.commit_index == 10
    assert node.persisted(12, 3) == 12
    assert node.persisted(18, 3) == 18


def test_a_late_completion_never_moves_the_commit_back():
    node = Node(term=0, next_index=0)
    node.propose(10)
    assert node.persisted(10, 0) == 10
    assert node.persisted(4, 0) == 10


def test_a_completion_of_an_overwritten_term_counts_for_nothing():
    node = Node(term=1, next_index=0)
    node.propose(5)
    node.truncated(0, term=2)
    assert node.persisted(5, 1) == 0
    node.propose(5)
    assert node.persisted(5, 2) == 5


def test_what_is_committed_cannot_be_truncated():
    node = Node(term=1, next_index=0)
    node.propose(5)
    node.persisted(5, 1)
    with pytest.raises(AssertionError):
        node.truncated(4, term=2)


def test_durability_beyond_the_end_is_a_broken_host():
    node = Node(term=1, next_index=0)
    node.propose(5)
    with pytest.raises(AssertionError):
        node.persisted(6, 1)


@pytest.mark.parametrize("seed", range(20))
def test_order_of_marks_holds_over_random_histories(seed):
    rng = random.Random(seed)
    node = Node(term=0, next_index=0)
    commits = [0]
    for _ in range(500):
        if rng.random() < 0.5:
            node.propose(rng.randint(1, 9))
        elif node.next_index:
            commits.append(node.persisted(rng.randint(0, node.next_index), node.term))
        assert node.commit_index <= node.durable_index <= node.next_index
    assert commits == sorted(commits)

"""Networks of test clusters that are made at the same time do not meet."""

import contextlib
import random

import pytest

from millstream.testing.namespaces import Namespaces, may_make


@pytest.mark.skipif(not may_make(), reason="needs root and iproute2")
def test_one_seed_in_two_processes_does_not_give_their_clusters_the_same_network():
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(2):
            random.seed(17)
            made = stack.enter_context(contextlib.closing(Namespaces([1])))
            addresses.append(made.address(1))
    assert addresses[0] != addresses[1]

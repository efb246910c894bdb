"""Sizes of buffers are rounded to the tiers that they are taken from."""

import pytest

from millstream.iobuf.sizes import ALLOC_TABLE, MAX_FRAGMENT_BYTES, next_allocation_size

SEED_TABLE = (512, 768, 1152, 1728, 2592, 3888, 5832, 8748, 13122, 19683, 29525, 44288, 66432, 99648, 131072)


def test_the_allocation_table_is_the_seeds():
    assert ALLOC_TABLE == SEED_TABLE


@pytest.mark.parametrize(
    ("asked", "given"), [(0, 512), (1, 512), (512, 512), (513, 768), (29526, 44288), (131072, 131072)]
)
def test_the_next_size_is_the_smallest_that_fits(asked, given):
    assert next_allocation_size(asked) == given


def test_no_fragment_is_larger_than_128_kib():
    with pytest.raises(ValueError, match="chain"):
        next_allocation_size(MAX_FRAGMENT_BYTES + 1)

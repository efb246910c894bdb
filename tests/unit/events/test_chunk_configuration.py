"""The configuration of chunks has the seed's keys and defaults, and refuses what they do not allow."""

import pytest

from millstream.config.event_partition import BufferPools, PoolShape, read_configuration
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode


def test_the_defaults_are_the_seeds():
    found = read_configuration({"path": "/fast"})
    assert (found.sync, found.fd_cache_capacity) == (True, 64)
    assert (found.max_chunk_size, found.max_events_per_chunk) == (64 << 20, 1_000_000)
    assert found.pools == BufferPools()


def test_every_key_is_taken_and_a_pool_given_in_part_keeps_its_other_defaults():
    found = read_configuration(
        {
            "path": "/fast",
            "sync": False,
            "max_chunk_size": 1,
            "max_events_per_chunk": 2,
            "fd_cache_capacity": 3,
            "producers": {"metadata_buffer_pool": {"num_tiers": 4}, "data_buffer_pool": {"num_buffers": 5}},
            "consumers": {"metadata_buffer_pool": {"first_size": 6}, "desc_buffer_pool": {"size_multiple": 7}},
        }
    )
    assert (found.sync, found.fd_cache_capacity) == (False, 3)
    assert (found.max_chunk_size, found.max_events_per_chunk) == (1, 2)
    assert found.pools == BufferPools(
        PoolShape(num_tiers=4),
        PoolShape(num_buffers=5, first_size=64 << 20),
        PoolShape(first_size=6),
        PoolShape(size_multiple=7, first_size=4 << 10),
    )


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "object"),
        ({"path": "relative"}, "absolute"),
        ({"path": "/p", "max_chunk_sise": 5}, "max_chunk_sise"),
        ({"path": "/p", "max_chunk_size": 0}, "max_chunk_size is 0"),
        ({"path": "/p", "max_events_per_chunk": -1}, "max_events_per_chunk is -1"),
        ({"path": "/p", "fd_cache_capacity": 0}, "fd_cache_capacity is 0"),
        ({"path": "/p", "sync": "yes"}, "sync"),
        ({"path": "/p", "consumers": {"data_buffer_pool": {}}}, "data_buffer_pool"),
        (
            {"path": "/p", "producers": {"data_buffer_pool": {"num_tiers": 0}}},
            r"producers\.data_buffer_pool\.num_tiers",
        ),
        ({"path": "/p", "producers": {"data_buffer_pool": {"tiers": 1}}}, "tiers"),
        ({"path": "/p", "producers": 5}, "producers"),
    ],
)
def test_what_the_keys_do_not_allow_is_refused_by_name(values, why):
    with pytest.raises(Rejected, match=why) as caught:
        read_configuration(values)
    assert caught.value.code is ErrorCode.INVALID_CONFIG

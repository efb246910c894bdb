import pytest
from controller_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench(num_partitions=4)

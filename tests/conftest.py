"""What holds for every test: no clock judges an example, descriptors suffice, garbage does not keep them, bytecode is
kept, brokers are forks of one process, and Ctrl-C means something to the processes that are started.

A test that draws what nobody has played before asks for ``fresh_seed``. Its failure is a finding, not a slow machine:
it is never run again, neither by ``--reruns`` nor by the second try of ``.ci/run``.
"""

import contextlib
import gc
import os
import random
import resource
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from millstream.testing.stem import grow

pytest_plugins = ["forks"]

DESCRIPTORS = 8192
GARBAGE_DESCRIPTORS = 100
"""How many more may be open than after the last collection before the next."""

SHOWN_BYTES = 32
"""So long may bytes be that stand in a test's name: longer ones bury it, and some are others in each collection."""

THRESHOLDS = (20_000, 10, 10)
"""Of the collector: it looks thirty times less often than with Python's own (700, 10, 10)."""

settings.register_profile("millstream", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("millstream")

SECOND_TRY = "MILLSTREAM_SECOND_TRY"
"""Set where a run plays again what failed in the one before."""

_open_then = 0


def pytest_configure(config):
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling costs a short process most of its time
    sys.dont_write_bytecode = False
    os.environ["MILLSTREAM_CLASS_ARCHIVE"] = "off"  # what is in the user's cache decides no test
    grow()
    gc.set_threshold(*THRESHOLDS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background, and it would be inherited
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Thousands of tests stay: to look through them for garbage again and again takes half the time of a collection,
    and as much in each later search.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item):
    if item.get_closest_marker("ci"):
        item.add_marker(pytest.mark.slow)
    if "fresh_seed" in item.fixturenames and item.config.pluginmanager.hasplugin("rerunfailures"):
        item.add_marker(pytest.mark.flaky(reruns=0))


@pytest.fixture
def fresh_seed(request):
    """A seed that nobody has played, the same in each test of a run. A failure names the option that draws it again."""
    if os.environ.get(SECOND_TRY):
        pytest.fail("a finding of a fresh seed stands: the first try names its seed", pytrace=False)
    seed = request.config.getoption("randomly_seed", None)
    if not isinstance(seed, int):
        seed = random.SystemRandom().randrange(1 << 32)
    request.node.add_report_section("setup", "seed", f"pytest --randomly-seed={seed} draws the same again")
    return seed


@pytest.fixture
def registry_of():
    """``registry_of(url)`` is Confluent's client of a schema registry, whose connections end with the test."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(SchemaRegistryClient({"url": url}))


def pytest_make_parametrize_id(config, val, argname):
    return f"{len(val)}-bytes" if isinstance(val, bytes) and len(val) > SHOWN_BYTES else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid, location):
    """A reactor that ran here has tuned this process's collector for a broker, and cycles hold descriptors."""
    global _open_then
    gc.set_threshold(*THRESHOLDS)
    if _descriptors() > _open_then + GARBAGE_DESCRIPTORS:
        gc.collect()
        _open_then = _descriptors()


def _descriptors():
    return len(os.listdir("/proc/self/fd"))

"""Processes of a broker start, end together and say how they ended."""

import contextlib
import os
import select
import signal
import sys

import pytest

from millstream.shard.process import EXIT_CHILD, EXIT_SOFTWARE, cores, pin, spawn, threads


def becomes_readable(descriptor: int) -> bool:
    """Whether it becomes readable soon; select() takes no descriptor above 1023, and a long session has such."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(120_000))


def forever():
    while True:
        signal.pause()


@pytest.mark.parametrize(("result", "code"), [(0, 0), (None, 0), (7, 7)])
def test_the_exit_code_is_what_main_returned(result, code):
    status = spawn("test", lambda: result).wait(60)
    assert (status.code, status.signal) == (code, 0)


def test_an_exception_ends_in_a_traceback_and_its_own_exit_code(capfd):
    def broken():
        raise LookupError("gone")

    assert spawn("test", broken).wait(60).code == EXIT_SOFTWARE
    assert "LookupError: gone" in capfd.readouterr().err


def test_sys_exit_is_an_exit_code_too():
    assert spawn("test", lambda: sys.exit(5)).wait(60).code == 5


def test_exit_handlers_of_the_parent_do_not_run_in_the_child(tmp_path):
    import atexit

    ran = tmp_path / "ran"
    mine = os.getpid()

    def handler():
        if os.getpid() != mine:
            ran.touch()

    atexit.register(handler)
    spawn("test", lambda: 0).wait(60)
    atexit.unregister(handler)
    assert not ran.exists()


def test_the_end_of_a_child_is_readable_and_tells_the_signal():
    child = spawn("test", forever)
    assert child.poll() is None
    assert child.wait(0.01) is None
    child.kill()
    assert becomes_readable(child.pidfd)
    status = child.wait()
    assert (status.code, status.signal) == (128 + signal.SIGKILL, signal.SIGKILL)
    assert str(status) == "was killed by SIGKILL"
    child.kill()  # nothing happens any more


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_child_leaves_stopping_to_the_supervisor(signum):
    readable, writable = os.pipe()

    def main():
        os.write(writable, b"up")
        forever()

    child = spawn("test", main)
    os.read(readable, 2)
    child.kill(signum)
    assert child.wait(0.1) is None
    child.kill()
    child.wait()
    os.close(readable)
    os.close(writable)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_all_descendants_die_when_the_supervisor_is_killed():
    """SIGKILL to the topmost leaves nobody: not its child, not its child's helper."""
    readable, writable = os.pipe()

    def helper():
        os.write(writable, f"{os.getpid()} ".encode())
        forever()

    def shard():
        os.write(writable, f"{os.getpid()} ".encode())
        spawn("helper", helper)
        forever()

    def supervisor():
        spawn("shard", shard)
        forever()

    top = spawn("supervisor", supervisor)
    text = b""
    while text.count(b" ") < 2:
        text += os.read(readable, 100)
    pids = [int(pid) for pid in text.split()]
    descriptors = [os.pidfd_open(pid) for pid in pids]
    assert all(alive(pid) for pid in pids)
    top.kill()
    top.wait()
    for descriptor in descriptors:
        assert becomes_readable(descriptor), "a descendant outlived the supervisor"
        os.close(descriptor)
    os.close(readable)
    os.close(writable)


def test_a_child_is_named_in_ps():
    readable, writable = os.pipe()

    def main():
        os.write(writable, b"up")
        forever()

    child = spawn("writer 3", main)
    os.read(readable, 2)
    with open(f"/proc/{child.pid}/comm") as comm, open(f"/proc/{child.pid}/cmdline") as cmdline:
        assert comm.read().strip() == "ms writer 3"
        assert cmdline.read().startswith("millstream: w"[:5])
    child.kill()
    child.wait()
    os.close(readable)
    os.close(writable)


def test_pinning_binds_the_child_and_not_the_parent():
    before = cores()

    def main():
        pin(before[-1])
        return 0 if cores() == [before[-1]] else 1

    assert spawn("test", main).wait(60).code == 0
    assert cores() == before


def test_native_threads_are_counted():
    import threading

    stop = threading.Event()
    before = threads()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert threads() == before + 1
    stop.set()
    thread.join()


def test_a_child_that_is_orphaned_before_it_could_ask_leaves_by_itself():
    """The parent dies between the fork and the child's first call: it finds another parent than it was told."""
    from millstream.shard import process

    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            process._begin("orphan", parent=os.getpid())  # a pid that is not its parent's
            os.write(writable, b"went on")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os.close(writable)
    assert os.waitstatus_to_exitcode(status) == EXIT_CHILD
    assert os.read(readable, 10) == b""
    os.close(readable)


def test_starting_a_process_takes_milliseconds():
    """Of the processor, its own and theirs: a busy machine may have them wait."""
    begun_s = sum(os.times()[:4])
    children = [spawn("test", lambda: 0) for _ in range(5)]
    for child in children:
        assert child.wait(60) is not None
    assert sum(os.times()[:4]) - begun_s < 2

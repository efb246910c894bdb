"""A replica that is opened on a full disk is opened once there is room; another failure stops the shard."""

import errno
from types import SimpleNamespace

from millstream.partition.opening import open_with_room


class Host:
    """A reactor and a storage, as far as they are asked here."""

    def __init__(self) -> None:
        self.stopping = False
        self.failures: list[str] = []
        self.later = []
        self.reactor = SimpleNamespace(call_later=lambda _, call: self.later.append(call))

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


def attempt(host, errors, wanted=lambda: True):
    got = []

    def opened():
        if errors:
            raise OSError(errors.pop(0), "refused")
        return "partition"

    open_with_room(host.reactor, host, "t/0", wanted, opened, got.append)
    return got


def test_it_is_opened_at_once_if_there_is_room():
    host = Host()
    assert attempt(host, []) == ["partition"]
    assert not host.later and not host.failures


def test_a_full_disk_is_waited_for():
    host = Host()
    got = attempt(host, [errno.ENOSPC, errno.EDQUOT])
    assert not got
    host.later.pop()()
    assert not got
    host.later.pop()()
    assert got == ["partition"]
    assert not host.later and not host.failures


def test_what_is_not_wanted_any_more_is_not_opened():
    host = Host()
    wanted = [True, False]
    got = attempt(host, [errno.ENOSPC], lambda: wanted.pop(0))
    host.later.pop()()
    assert not got and not host.later


def test_another_failure_stops_the_shard():
    host = Host()
    assert not attempt(host, [errno.EIO])
    assert host.failures == ["t/0 could not be opened: refused"]
    assert not host.later


def test_nothing_is_opened_while_the_shard_stops():
    host = Host()
    host.stopping = True
    assert not attempt(host, [])

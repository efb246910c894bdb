"""Responses leave in the order of the requests, count until they are sent, and release their memory exactly once."""

from types import SimpleNamespace

from millstream.net.owed import Owed
from millstream.net.responses import LARGE_BYTES, MAX_IN_FLIGHT, MAX_UNSENT_BYTES, Responses


class Holder:
    def __init__(self):
        self.released = 0

    def release(self):
        self.released += 1


def request(body=b"", *, done=False, holds=False, holder=None):
    return SimpleNamespace(buffers=(body,), size=len(body), done=done, holds=holds, holder=holder)


def sent(responses):
    """What would be sent now."""
    responses.queue_completed()
    return b"".join(bytes(view) for view in responses.outbox.next_views())


def test_a_response_waits_for_the_ones_before_it():
    responses = Responses()
    first, second = request(b"a"), request(b"b", done=True)
    responses.exchanges.extend([first, second])
    assert sent(responses) == b""
    first.done = True
    assert sent(responses) == b"ab"
    assert not responses.exchanges


def test_a_request_without_a_response_leaves_nothing():
    responses = Responses()
    silent = request(done=True)
    silent.buffers = None
    responses.exchanges.extend([silent, request(b"b", done=True)])
    assert sent(responses) == b"b"


def test_a_connection_is_full_by_requests_bytes_or_a_hold():
    for attribute, value in (("unsent", MAX_UNSENT_BYTES + 1), ("held", 1)):
        responses = Responses()
        assert not responses.is_full
        setattr(responses, attribute, value)
        assert responses.is_full
        assert not responses.are_few
    responses = Responses()
    responses.exchanges.extend(request() for _ in range(MAX_IN_FLIGHT))
    assert responses.is_full


def test_a_connection_that_is_not_full_may_still_have_to_catch_up():
    responses = Responses()
    responses.unsent = LARGE_BYTES + 1
    assert not responses.is_full
    assert not responses.are_few
    responses.unsent = LARGE_BYTES
    assert responses.are_few


def test_only_bytes_outside_the_arena_are_owed():
    responses, owed = Responses(), Owed(reactor=None, bytes_max=1)
    responses.unsent = 100
    responses.outbox.lent = 60
    owed.account(responses)
    owed.account(responses)
    assert owed.bytes == 40
    responses.drop()
    owed.closed(SimpleNamespace(responses=responses))
    assert owed.bytes == 0


def test_a_drop_releases_each_holder_once_and_names_the_requests_that_hold():
    responses, holders = Responses(), [Holder(), Holder()]
    waiting = request(holds=True)
    responses.exchanges.extend(
        [request(b"a", done=True, holder=holders[0]), waiting, request(b"c", done=True, holder=holders[1])]
    )
    responses.queue_completed()
    assert responses.drop() == [waiting]
    assert [holder.released for holder in holders] == [1, 1]

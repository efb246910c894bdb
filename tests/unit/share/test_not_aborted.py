"""Which batches a share group that reads what is committed gets."""

from millstream.share.served import Span, not_aborted


def data(first, last, producer):
    return Span(first, last, 0, 0, producer, True, False)


def marker(offset, producer):
    return Span(offset, offset, 0, 0, producer, True, True)


def kept(spans, aborted):
    return [one.first for one in not_aborted(spans, aborted)]


def test_an_aborted_transaction_lasts_until_its_marker():
    plain = Span(5, 5, 0, 0, 1, False, False)
    spans = [
        data(0, 1, 1),
        data(2, 3, 2),
        data(4, 4, 1),
        plain,
        marker(6, 1),
        data(7, 8, 1),
        marker(9, 2),
        marker(10, 1),
    ]
    assert kept(spans, [(1, 0)]) == [2, 5, 6, 7, 9, 10]
    assert kept(spans, [(2, 2), (1, 7)]) == [0, 4, 5, 6, 9, 10]
    assert kept(spans, []) == [0, 2, 4, 5, 6, 7, 9, 10]


def test_a_read_may_start_in_the_middle_of_a_transaction():
    assert kept([data(7, 8, 1), marker(9, 1), data(10, 10, 1)], [(1, 3)]) == [9, 10]

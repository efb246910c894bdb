"""Batches of unknown producers: the model is a client that sends what was refused again, in order."""

import random

from millstream.core.overtaking import PRODUCERS_MAX, Overtaking


def test_a_client_with_any_number_of_batches_under_way_has_them_taken_in_order() -> None:
    """Sends up to five batches, of which the broker refuses any number at first because it has no partition yet; what
    comes back is sent again in order, while new ones follow.
    """
    for seed in range(500):
        rng = random.Random(seed)
        overtaking, taken = Overtaking(), []
        first = rng.choice((0, 0, 7, 2**31 - 7))
        sequences = [(first + number) % 2**31 for number in range(12)]
        missing = rng.randrange(5)  # requests that come before the partition is open
        waiting, rounds = sequences[:5], 0
        following = sequences[5:]
        while waiting:
            rounds += 1
            assert rounds < 30, (seed, waiting, taken)
            refused = []
            for sequence in waiting:
                known = bool(taken)
                if missing:
                    missing -= 1
                    refused.append(sequence)
                elif rng.random() < 0.05 and not known:
                    overtaking.expect(0)  # refused for another reason
                    refused.append(sequence)
                elif known and sequence != (taken[-1] + 1) % 2**31:
                    refused.append(sequence)  # a gap of a known producer
                elif not known and overtaking.refuses(1, 0, sequence):
                    refused.append(sequence)
                else:
                    taken.append(sequence)
            waiting = refused + [following.pop(0) for _ in range(5 - len(refused)) if following]
        assert taken == sequences, seed


def test_a_lower_sequence_or_a_new_epoch_is_seen_for_the_first_time() -> None:
    overtaking = Overtaking()
    assert overtaking.refuses(1, 0, 9)
    assert overtaking.refuses(1, 0, 8)
    assert overtaking.refuses(1, 0, 9)
    assert overtaking.refuses(1, 1, 8)
    assert not overtaking.refuses(1, 1, 8)
    assert not overtaking.refuses(2, 0, 0)


def test_the_producers_that_are_remembered_are_bounded() -> None:
    overtaking = Overtaking()
    assert all(overtaking.refuses(number, 0, 3) for number in range(PRODUCERS_MAX))
    assert not overtaking.refuses(PRODUCERS_MAX, 0, 3), "taken, as Kafka takes it"

"""Quotas against naive models: whose quota holds, how long a client waits, tokens of changes, memory."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.quota.limits import CLIENT_KINDS, Bound, EntityFilter, Limits, Sharers, entity_of
from millstream.core.quota.mutations import BUCKETS_MAX, MutationClient, MutationQuotas
from millstream.core.quota.rate import TokenBucket, WindowedRate
from millstream.core.quota.usage import COMMON, Usage, Used
from millstream.errors import Rejected

KIND = "producer_byte_rate"
NAMES = ("a", "b", None)
LEVELS = ("user", "client-id")

names = st.sampled_from(NAMES)
entities = st.dictionaries(st.sampled_from(LEVELS), names, min_size=1).map(lambda parts: entity_of(parts.items()))
quotas = st.lists(st.tuples(entities, st.sampled_from(CLIENT_KINDS), st.sampled_from((1.0, 2.0, 3.0, None))))


def naive_bound(values, kind, user, client):
    """KIP-55, level by level: (user, client id), and who shares."""
    pair, one_user, one_client = Sharers(user, client), Sharers(user, None), Sharers(None, client)
    for wanted_user, wanted_client, sharers in (
        (user, client, pair),
        (user, None, pair),
        (user, "absent", one_user),
        (None, client, pair),
        (None, None, pair),
        (None, "absent", one_user),
        ("absent", client, one_client),
        ("absent", None, one_client),
    ):
        parts = {"user": wanted_user, "client-id": wanted_client}
        entity = entity_of((key, name) for key, name in parts.items() if name != "absent")
        if (entity, kind) in values:
            return Bound(values[entity, kind], sharers)
    return None


@settings(max_examples=30)
@given(quotas, st.sampled_from(("a", "b", "c", "")), st.sampled_from(("a", "b", "c", "")))
def test_the_quota_of_a_client_is_that_of_the_first_level_that_has_one(changes, user, client):
    limits, values = Limits(), {}
    for entity, kind, value in changes:
        limits.change(entity, {kind: value})
        values[entity, kind] = value
    values = {key: value for key, value in values.items() if value is not None}
    for kind in CLIENT_KINDS:
        assert limits.bound(kind, user, client) == naive_bound(values, kind, user, client)
        assert limits.has(kind) == any(key[1] == kind for key in values)
    assert limits.limits_clients() == bool(values)
    assert all(limits.entities.values())
    restored = Limits(limits.copy().entities)
    assert all(restored.bound(kind, user, client) == limits.bound(kind, user, client) for kind in CLIENT_KINDS)


@settings(max_examples=30)
@given(quotas, st.dictionaries(st.sampled_from(LEVELS), st.sampled_from(("a", None, "any"))), st.booleans())
def test_a_filter_passes_what_its_parts_say(changes, parts, strict):
    limits = Limits()
    for entity, kind, _ in changes:
        limits.change(entity, {kind: 1.0})
    some = frozenset(kind for kind, name in parts.items() if name == "any")
    wanted = EntityFilter({kind: name for kind, name in parts.items() if name != "any"}, some, strict)
    for entity in limits.entities:
        have = dict(entity)
        passes = all(kind in have and name in (have[kind], "any") for kind, name in parts.items())
        assert wanted.matches(entity) == (passes and (not strict or len(have) == len(parts)))


def test_addresses_are_compared_as_connections_have_them():
    limits = Limits()
    limits.change((("ip", "0:0:0:0:0:0:0:1"),), {"connection_creation_rate": 5.0})
    limits.change((("ip", "::ffff:10.0.0.1"),), {"connection_creation_rate": 6.0})
    limits.change((("ip", None),), {"connection_creation_rate": 7.0})
    assert limits.addresses() == {"::1": 5.0, "10.0.0.1": 6.0, "": 7.0}
    limits.change((("ip", None),), {"connection_creation_rate": None})
    assert limits.addresses() == {"::1": 5.0, "10.0.0.1": 6.0}
    assert not limits.limits_clients()


class NaiveRate:
    """Every record, kept for ever."""

    def __init__(self, windows, window_us):
        self.windows, self.window_us, self.begins, self.records = windows, window_us, [], []

    def record(self, amount, now_us):
        begins = [each for each in self.begins if each > now_us - self.windows * self.window_us]
        if not begins or now_us - begins[-1] >= self.window_us:
            self.begins.append(now_us)
        self.records.append((self.begins[-1], amount))

    def throttle_us(self, bound, now_us):
        live = [each for each in self.begins if each > now_us - self.windows * self.window_us]
        total = sum(amount for begin, amount in self.records if begin in live)
        elapsed = now_us - live[0] if live else 0
        full = elapsed // self.window_us
        span = elapsed + max(0, self.windows - 1 - full) * self.window_us
        rate = total * 1e6 / span if span else 0
        return max(0, round((rate - bound) / bound * span))


@settings(max_examples=50)
@given(st.integers(2, 12), st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(0, 1_000))), st.integers(1, 500))
def test_throttle_times_are_those_of_the_formula(windows, steps, bound):
    rate, naive, now_us = WindowedRate(windows, 1_000_000), NaiveRate(windows, 1_000_000), 0
    for wait_us, amount in steps:
        now_us += wait_us
        rate.record(amount, now_us)
        naive.record(amount, now_us)
        assert abs(rate.throttle_us(bound, now_us) - naive.throttle_us(bound, now_us)) <= 1
    assert len(rate._samples) <= windows


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_greedy_clients_on_several_shards_get_the_quota_of_one_broker(shards, seed):
    """Each client sends as fast as it may: after an answer it waits for its throttle time. Shards tell each other every
    50 ms, later by a random delay.
    """
    rng = random.Random(seed)
    bound = Bound(100_000.0, Sharers("u", None))
    usages = [Usage(11, 1_000_000) for _ in range(shards)]
    clients = [(0, shard) for shard in range(shards) for _ in range(2)]
    mail: list[tuple[int, int, Used]] = []
    sent, end_us, size = 0, 60_000_000, 5_000
    tell_us = [rng.randrange(50_000) for _ in range(shards)]
    now_us = 0
    while now_us < end_us:
        now_us += 1_000
        for due in [each for each in mail if each[0] <= now_us]:
            mail.remove(due)
            usages[due[1]].heard(due[2], now_us)
        for shard, usage in enumerate(usages):
            if now_us >= tell_us[shard]:
                tell_us[shard] += 50_000
                for used in usage.take_unsent(100):
                    late = now_us + rng.randrange(20_000)
                    mail += [(late, other, used) for other in range(shards) if other != shard]
        for index, (free_us, shard) in enumerate(clients):
            if free_us <= now_us:
                sent += size
                wait_us = usages[shard].record(KIND, bound, size, now_us)
                clients[index] = (now_us + max(1_000, wait_us), shard)
    allowed = bound.value * (end_us / 1e6 + 1)  # the first window counts as ten
    within_a_telling = len(clients) * size * 70
    assert 0.9 * bound.value * end_us / 1e6 <= sent <= 1.03 * allowed + within_a_telling


def test_an_answer_passes_after_a_pause_whatever_its_size():
    usage, bound = Usage(11, 1_000_000), Bound(10.0, Sharers(None, "c"))
    assert usage.would_wait(KIND, bound, 1e9, 0) == 0
    wait_us = usage.record(KIND, bound, 1e9, 0)
    assert wait_us > 1e12
    assert usage.would_wait(KIND, bound, 1, 5_000_000) > 0
    assert usage.would_wait(KIND, bound, 1, 12_000_000) == 0


def test_the_memory_of_rates_is_bounded_and_further_clients_share_one():
    usage = Usage(11, 1_000_000, entries_max=100)
    waits = [usage.record(KIND, Bound(1_000.0, Sharers(f"u{n}", None)), 300.0, n) for n in range(400)]
    assert len(usage) == 101
    assert not any(waits[:100])
    assert waits[-1] > 0
    assert any(Sharers(used.user, used.client_id) == COMMON for used in usage.take_unsent(1_000))
    usage.expire(20_000_000)
    assert len(usage) == 0
    assert usage.take_unsent(10) == []


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(1, 40))), st.integers(1, 10))
def test_tokens_flow_in_up_to_the_burst_and_may_be_owed(steps, rate):
    burst_s, now_us, tokens = 5, 0, 5.0 * rate
    bucket = TokenBucket(rate, burst_s, 0)
    for wait_us, count in steps:
        now_us += wait_us
        tokens = min(burst_s * rate, tokens + rate * wait_us / 1e6)
        assert bucket.debt_us(rate, now_us) == pytest.approx(max(0.0, -tokens / rate * 1e6), abs=2)
        bucket.take(count, rate, now_us)
        tokens -= count
        assert bucket.tokens == pytest.approx(tokens, abs=1e-6)


def test_a_strict_client_is_refused_and_an_older_one_throttled():
    limits, quotas = Limits(), MutationQuotas(burst_s=11)
    limits.change((("user", "a"),), {"controller_mutation_rate": 1.0})
    strict, older = MutationClient("a", "x", True), MutationClient("a", "y", False)
    spender = quotas.spender(strict, limits, 0)
    spender.take(20)  # more than the burst of 11, as none is owed
    assert spender.throttle_us == 0
    with pytest.raises(Rejected, match="quota has been exceeded"):
        spender.take(1)
    assert spender.throttle_us == 9_000_000
    spender = quotas.spender(older, limits, 4_000_000)
    spender.take(1)
    assert spender.throttle_us == 6_000_000
    spender = quotas.spender(strict, limits, 10_000_000)
    spender.take(1)
    assert spender.throttle_us == 0
    quotas.spender(MutationClient("b", "", True), limits, 0).take(10**9)
    quotas.spender(None, limits, 0).take(10**9)


def test_the_memory_of_buckets_is_bounded():
    limits, quotas = Limits(), MutationQuotas(burst_s=60)
    limits.change((("client-id", None),), {"controller_mutation_rate": 1.0})
    for n in range(BUCKETS_MAX + 50):
        quotas.spender(MutationClient("u", f"c{n}", True), limits, 0).take(1)
    assert len(quotas) == BUCKETS_MAX + 1
    quotas.spender(MutationClient("u", "later", True), limits, 60_000_000).take(1)
    assert len(quotas) == 1

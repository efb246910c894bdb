"""The first start of a cluster: all seeds agree, or nothing is formed; what contradicts is refused with the remedy."""

import itertools
import random

import msgspec
import pytest

from millstream.peers.formation import Form, Formation, Join, Refuse, cluster_id_of
from millstream.peers.hello import Founder, Probe, Seed

SEEDS = (Seed("a", 1), Seed("b", 1), Seed("c", 1))


def founder(node, disk=None):
    return Founder(node, bytes([disk or node]) * 16, Seed(f"broker-{node}", 9192))


def probe(node, *, seeds=SEEDS, cluster="", founders=(), disk=None):
    return Probe(founder(node, disk), seeds, cluster, founders, 1, "0.1.0")


def decided(own, *answers):
    """The outcome when these answers are heard twice."""
    formation = Formation(own)
    for _ in range(2):
        for seed, answer in answers:
            formation.answered(seed, answer, formation.round)
        outcome = formation.outcome()
        if outcome is not None:
            break
    return outcome


A, B, C = ((seed, probe(node)) for seed, node in zip(SEEDS, (1, 2, 3), strict=True))
FOUNDERS = (founder(1), founder(2), founder(3))
FORMED = Form(cluster_id_of(FOUNDERS), FOUNDERS)


@pytest.mark.parametrize("answers", list(itertools.permutations((A, B, C))))
def test_all_brokers_form_the_same_cluster_in_whatever_order_they_hear(answers):
    assert {decided(probe(node, seeds=tuple(reversed(SEEDS))), *answers) for node in (1, 2, 3)} == {FORMED}
    assert len(FORMED.cluster_id) == 22


def test_nothing_is_formed_while_a_seed_is_silent_nor_before_all_have_said_it_twice():
    formation = Formation(probe(1))
    for seed, answer in (A, C):
        formation.answered(seed, answer, 0)
    assert (formation.outcome(), formation.unanswered) == (None, (SEEDS[1],))
    formation.answered(*B, 0)
    assert (formation.outcome(), formation.unanswered, formation.round) == (None, SEEDS, 1)
    for seed, answer in (A, B, C):
        formation.answered(seed, answer, 0)
    assert formation.unanswered == SEEDS, "late answers of the first round do not count for the second"
    for seed, answer in (A, B, C):
        formation.answered(seed, answer, 1)
    assert formation.outcome() == FORMED


def test_a_round_that_differs_from_the_one_before_is_repeated():
    formation = Formation(probe(1))
    emptied = (SEEDS[2], probe(3, disk=9))
    for number, answers in enumerate([(A, B, C), (A, B, emptied), (A, B, emptied)]):
        for seed, answer in answers:
            formation.answered(seed, answer, number)
        outcome = formation.outcome()
    founders = (founder(1), founder(2), founder(3, 9))
    assert outcome == Form(cluster_id_of(founders), founders)


def test_an_existing_cluster_is_joined_though_other_seeds_are_silent():
    member = probe(2, cluster="x", founders=(founder(2), founder(8)))
    assert decided(probe(1), A, (SEEDS[1], member)) == Join("x", (founder(2),))
    single = probe(2, cluster="x", seeds=())
    assert decided(probe(1), (SEEDS[1], single)) == Join("x", (founder(2),))


def test_a_founder_that_missed_the_end_forms_the_same_cluster_and_an_emptied_one_joins():
    formed = (SEEDS[0], probe(1, cluster=FORMED.cluster_id, founders=FOUNDERS))
    assert decided(probe(3), formed) == FORMED
    assert decided(probe(3, disk=9), formed) == Join(FORMED.cluster_id, (founder(1),))


def test_a_founder_that_moved_to_another_address_is_still_a_founder():
    moved = tuple(msgspec.structs.replace(each, peer=Seed("elsewhere", 1)) for each in FOUNDERS)
    formed = (SEEDS[0], probe(1, cluster=FORMED.cluster_id, founders=moved))
    assert decided(probe(3), formed) == Form(FORMED.cluster_id, moved)


@pytest.mark.parametrize(
    ("own", "answers", "words"),
    [
        (
            probe(1),
            (A, (SEEDS[1], probe(2, seeds=SEEDS[:2]))),
            "b:1 has other seeds (a:1, b:1) than this broker (a:1, b",
        ),
        (probe(1), (A, (SEEDS[1], probe(1, disk=2))), "b:1 has node id 1, like this broker: give each broker a --node"),
        (probe(1), (B, (SEEDS[2], probe(2, disk=7))), "b:1 and c:1 have both node id 2"),
        (probe(1), (A, (SEEDS[1], A[1])), "a:1 and b:1 are the same broker: name each broker once"),
        (probe(4), (A, B, C), "none of the seeds is this broker"),
        (
            probe(1),
            ((SEEDS[1], probe(2, cluster="x")), (SEEDS[2], probe(3, cluster="y"))),
            "the seeds belong to different clusters (x, y)",
        ),
    ],
)
def test_what_contradicts_is_refused_with_the_remedy(own, answers, words):
    outcome = decided(own, *answers)
    assert isinstance(outcome, Refuse)
    assert words in outcome.message


def test_answers_of_addresses_that_were_not_asked_do_not_count():
    assert decided(probe(1), (Seed("d", 1), probe(4, cluster="x"))) is None


def test_a_contradiction_is_not_refused_where_a_cluster_exists():
    """A seed of an existing cluster may have been started with other seeds, or with none."""
    assert decided(probe(1), (SEEDS[0], probe(1)), (SEEDS[1], probe(2, cluster="x", seeds=()))) == Join(
        "x", (founder(2),)
    )


WHERE = dict(zip((1, 2, 3), SEEDS, strict=True))


class World:
    """Three brokers that ask each other; one of them loses its disk once. Answers are under way for any time."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.disks = {node: node for node in WHERE}
        self.formed = {}
        self.ways = {}
        self.under_way = []
        self.disk_lost = False
        self.quorums = set()

    def says(self, node):
        own = probe(node, disk=self.disks[node])
        form = self.formed.get(node)
        return own if form is None else msgspec.structs.replace(own, cluster_id=form.cluster_id, founders=form.founders)

    def step(self):
        node, asked = self.rng.choice((1, 2, 3)), self.rng.choice((1, 2, 3))
        what = self.rng.random()
        if what < 0.03 and not self.disk_lost:
            self.disk_lost = True
            self.disks[node] = 9
            self.formed.pop(node, None)
            self.ways.pop(node, None)
        elif what < 0.06:
            self.ways.pop(node, None)
        elif what < 0.5 and node not in self.formed:
            way = self.ways.setdefault(node, Formation(self.says(node)))
            self.under_way.append((node, way, WHERE[asked], self.says(asked), way.round))
        elif self.under_way:
            node, way, *answer = self.under_way.pop(self.rng.randrange(len(self.under_way)))
            if self.ways.get(node) is way and node not in self.formed:
                way.answered(*answer)
                outcome = way.outcome()
                if isinstance(outcome, Form):
                    self.formed[node] = outcome
        for form in self.formed.values():
            votes = [
                n for n, other in self.formed.items() if other == form and founder(n, self.disks[n]) in form.founders
            ]
            if len(votes) >= 2:
                self.quorums.add(form.cluster_id)


def test_no_two_clusters_ever_have_a_quorum_though_brokers_crash_and_one_disk_is_emptied():
    seeds = range(500)
    formed = 0
    for seed in seeds:
        world = World(seed)
        for _ in range(150):
            world.step()
        assert len(world.quorums) <= 1, f"seed {seed}: {world.quorums}"
        formed += bool(world.quorums)
    assert formed > len(seeds) // 2, "most worlds get that far"


def test_one_round_would_not_be_enough(monkeypatch):
    """The same worlds find the second cluster if a broker forms one after its first complete round."""
    whole = Formation.outcome

    def hasty(self):
        outcome = whole(self)
        return (
            whole(self)
            if outcome is not None
            else self._last_round and Form(cluster_id_of(self._last_round), self._last_round)
        )

    monkeypatch.setattr(Formation, "outcome", hasty)

    def quorums(seed):
        world = World(seed)
        for _ in range(150):
            world.step()
        return len(world.quorums)

    assert any(quorums(seed) == 2 for seed in range(3000))

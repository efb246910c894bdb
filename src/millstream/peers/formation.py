"""The first start of a cluster: N empty brokers with the same seeds form one, or join the one that exists.

::

    empty disk ─► ask every seed ─► all answer "empty, same seeds"  ─► ask all again ─► the same ─► Form
                       │            one answers "cluster X"         ─► Join X, or Form if X has this broker as a founder
                       │            seeds or brokers contradict     ─► Refuse, in words
                       └─ some are silent: ask again, for ever

A pure state machine: probes and answers in, one outcome out. A cluster is formed by all seeds only, so two halves of a
split network cannot form two. The cluster's id and its first members follow from the founders alone, so all founders
form the same cluster without an election.

**Why two rounds.** A seed that answered "empty" may have formed a cluster since, with a broker whose disk was emptied
after that. One round could mix its old answer with the answer of the emptied broker, and form a second cluster beside
one that has committed. Two equal rounds prove that at the moment between them all founders were empty, with the disks
that they have. (With one disk in three lost, one round fails in the simulation of the tests, two do not.)

A founder that crashes before it has an outcome asks again. The others answer that they belong to a cluster, with its
founders, and a broker that finds itself among them (node id *and* disk) forms the same one. With a disk that was
emptied in between it is no longer a founder: it joins, and the controller decides whether its node id is free.

Each broker answers probes at any time with what it is (``probe``), also while it asks itself. **Crash**: the caller
makes an outcome durable before it acts on it; without one, the next start asks again. **Bad input**: answers that were
decoded (``hello``); a second answer of a seed in one round replaces the first. Two clusters among the seeds are
refused: a person must say which one is meant.

A disk that belongs to a cluster does not use this module.
"""

import base64
import hashlib
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from millstream.peers.hello import Founder, Probe, Seed

CLUSTER_ID_BYTES: Final = 16


class Form(msgspec.Struct, frozen=True):
    """This broker is one of the ``founders`` (in order of node id) of the new cluster ``cluster_id``."""

    cluster_id: str
    founders: tuple[Founder, ...]


class Join(msgspec.Struct, frozen=True):
    """The cluster ``cluster_id`` exists; ``through`` are brokers of it that are among the seeds."""

    cluster_id: str
    through: tuple[Founder, ...]


class Refuse(msgspec.Struct, frozen=True):
    """This broker must not start; ``message`` names the remedy."""

    message: str


Outcome: TypeAlias = Form | Join | Refuse


def cluster_id_of(founders: Iterable[Founder]) -> str:
    """The id of the cluster that ``founders`` form: a UUID in URL-safe base 64 as Kafka writes one, made of their
    node ids and disks. It does not start with ``-``, which would look like an option on a command line.
    """
    ordered = sorted(founders)
    for attempt in range(256):
        digest = hashlib.blake2b(bytes((attempt,)), digest_size=CLUSTER_ID_BYTES)
        for founder in ordered:
            digest.update(founder.node.to_bytes(4, "big") + founder.incarnation)
        text = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
    raise AssertionError("256 hashes begin with the same character")


class Formation:
    """The formation as one broker with an empty disk runs it.

    Lifecycle: made at the start of the broker, dropped with its outcome. The caller sends ``probe`` to each of
    ``unanswered`` again and again, and hands answers in with the ``round`` in which it sent the probe. After each
    answer it asks for ``outcome``.
    Invariants: ``_answers`` holds seeds of ``probe.seeds`` only, each asked and answered in this round.
    ``_last_round`` holds the founders of the newest complete round before this one, and is empty without one.
    """

    def __init__(self, probe: Probe) -> None:
        """``probe`` says what this broker is; its seeds are in any order and name each address once."""
        self.probe = probe
        self.round = 0
        """Counts the rounds, so that an answer to a probe of an earlier one is not taken for a fresh one."""
        self._answers: dict[Seed, Probe] = {}
        self._last_round: tuple[Founder, ...] = ()

    @property
    def unanswered(self) -> tuple[Seed, ...]:
        """The seeds that have not answered yet, in their order."""
        return tuple(seed for seed in self.probe.seeds if seed not in self._answers)

    def answered(self, seed: Seed, answer: Probe, asked_in: int) -> None:
        """``seed`` says what it is, to a probe of round ``asked_in``. This broker answers itself if it is a seed."""
        if seed in self.probe.seeds and asked_in == self.round:
            self._answers[seed] = answer

    def outcome(self) -> Outcome | None:
        """What follows from the answers; None as long as seeds must be asked, perhaps in a new round."""
        clusters = {answer.cluster_id for answer in self._answers.values() if answer.cluster_id}
        if len(clusters) > 1:
            return Refuse(
                f"the seeds belong to different clusters ({', '.join(sorted(clusters))}): name seeds of one cluster"
            )
        for cluster_id in clusters:
            return self._existing(cluster_id)
        return self._contradiction() or (None if self.unanswered else self._formed())

    def _existing(self, cluster_id: str) -> Outcome:
        """A cluster exists: this broker founds it, too, or joins it."""
        members = {seed: answer for seed, answer in self._answers.items() if answer.cluster_id == cluster_id}
        for answer in members.values():
            if any(_same(self.probe.founder, founder) for founder in answer.founders):
                return Form(cluster_id, tuple(sorted(answer.founders)))
        return Join(cluster_id, tuple(sorted(answer.founder for answer in members.values())))

    def _contradiction(self) -> Refuse | None:
        """What is wrong with the answers of brokers without a cluster."""
        mine = self.probe
        for seed, answer in self._answers.items():
            if set(answer.seeds) != set(mine.seeds):
                return Refuse(
                    f"{_shown(seed)} has other seeds ({_listed(answer.seeds)}) than this broker "
                    f"({_listed(mine.seeds)}): give all brokers of a new cluster the same --seeds"
                )
        brokers: dict[int, Seed] = {}
        for seed, answer in self._answers.items():
            node = answer.founder.node
            if node == mine.founder.node and answer.founder != mine.founder:
                return Refuse(
                    f"{_shown(seed)} has node id {node}, like this broker: give each broker a --node-id of its own"
                )
            other = brokers.setdefault(node, seed)
            if other == seed:
                continue
            if answer.founder == self._answers[other].founder:
                return Refuse(
                    f"{_shown(other)} and {_shown(seed)} are the same broker: name each broker once in --seeds"
                )
            return Refuse(
                f"{_shown(other)} and {_shown(seed)} have both node id {node}: give each broker a --node-id of its own"
            )
        return None

    def _formed(self) -> Outcome | None:
        """Every seed is empty and agrees: the outcome if the round before said the same, else a new round starts."""
        founders = tuple(sorted(answer.founder for answer in self._answers.values()))
        if self.probe.founder not in founders:
            return Refuse(
                "no cluster exists, and none of the seeds is this broker: name its own --peer-listen address in "
                "--seeds to form a cluster with it, or start the seeds first"
            )
        if founders != self._last_round:
            self._last_round = founders
            self._answers = {}
            self.round += 1
            return None
        return Form(cluster_id_of(founders), founders)


def _same(one: Founder, other: Founder) -> bool:
    """Whether it is the same broker with the same disk, at any address."""
    return one.node == other.node and one.incarnation == other.incarnation


def _listed(seeds: Iterable[Seed]) -> str:
    return ", ".join(_shown(seed) for seed in sorted(seeds))


def _shown(seed: Seed) -> str:
    return f"[{seed.host}]:{seed.port}" if ":" in seed.host else f"{seed.host}:{seed.port}"

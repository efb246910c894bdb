"""Scripts: a small cluster of cores that does what a text file says, and the transcript of what happened.

A file holds both: lines that start with ``>`` are commands, those after each are what it led to, other lines are prose
and stay. What a command that starts with ``>>`` leads to is left out. Everything goes through the simulated world, so
the invariants of `judge` hold in each script. ``python -m sim.raft.script FILE ...`` plays files and
rewrites their transcripts; a test compares them.

==================================  ===================================================================================
``> nodes 3 [OPTION=VALUE ...]``    begin; options are those of `core.raft.options`, ``no`` and ``yes`` for switches,
                                    ``units=1`` for appends of one entry each, ``spares=1`` for a node that is no member
                                    yet, ``fold=1`` for logs that keep so few committed entries
``> wait 1500``                     let so many milliseconds pass
``> until 2 leads``                 … until the node serves as the leader; ``until acked a`` until a is acknowledged
``> append 1 a b``                  a client appends batches to node 1
``> stand 3``                       the election timeout of node 3 passes
``> cut 1 | 2 3``                   nothing passes between the two sides
``> one-way 1 -> 2 3``              nothing passes from node 1 to these
``> mend``                          everything passes again
``> lose 10 heartbeats 1 -> 2``     the next so many are lost; ``show heartbeats`` writes down those that are not
``> hold 1 -> 2``                   messages wait; ``release 1 -> 2`` lets them go, after those that were sent since
``> crash 1``, ``> start 1``        power fails: what is not synced is lost
``> wipe 1``, ``> replace 1``       the disk of a node that is down is empty: as the member that it was, or as a new one
``> damage 1 3``                    the log of a node that is down can't be read from position 3 on
``> forget 1 3``                    … is gone from position 3 on, and the node does not notice
``> members 1 voters 1 2 learns 3`` node 1 is asked for other members; ``alone 1``: for an unsafe recovery
``> pause 1``, ``> go on 1``        the process stops
``> stall 1``, ``> sync 1``         no sync of the node's disk ends until the second
``> transfer 1 -> 2``               node 1 is asked to hand its leadership over
``> read 1 r``                      a read barrier
``> logs``                          show all logs
==================================  ===================================================================================

A message takes 5 ms, a sync 1 ms, the transfer of files 125 ms. Heartbeats and their answers are left out of a
transcript. In a log ``[2 . a]`` are the entries of term 2: the term start, and the batch a. Members stand there in
parentheses, of a joint configuration the new and the former ones. ``4|`` is the end of the entries that a log lacks.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from millstream.core.raft import election
from millstream.core.raft.messages import Configuration, Heartbeat, HeartbeatReply, InstallOffer
from millstream.core.raft.options import RaftOptions
from millstream.core.raft.ready import Role
from millstream.model.replication import NO_REPLICA, RaftPosition, ReadId, node_of, replica_id
from sim.engine.timeline import SECOND
from sim.raft.judge import Judge
from sim.raft.knobs import MILLISECOND, draw_knobs
from sim.raft.script_words import members_in_words, message_in_words
from sim.raft.world import World

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from millstream.core.raft.messages import Message
    from millstream.model.replication import ReplicaId
    from sim.raft.image import LogImage, Unit
    from sim.raft.knobs import Knobs
    from sim.raft.replica import SimReplica

MESSAGE_US: Final = 5 * MILLISECOND
SYNC_US: Final = MILLISECOND
LIMIT_US: Final = 60 * SECOND
_NEVER: Final = 1 << 60


def play(text: str) -> str:
    """The script with the transcript of what happens now.

    Raises:
        ValueError: a command is none, or comes before ``nodes``.
        AssertionError: an invariant is broken, or ``until`` waits for too long.
    """
    lines: list[str] = []
    stage: Stage | None = None
    for line in text.splitlines():
        if line.startswith((">", ">>")):
            schedule, *words = line.split()
            lines.append(line)
            if words[0] == "nodes":
                stage = Stage(int(words[1]), words[2:])
            elif stage is None:
                raise ValueError(f"{line}: a script begins with nodes")
            else:
                stage.do(words)
            if schedule == ">":
                lines += stage.lines
            stage.lines.clear()
        elif not line.startswith("    "):
            lines.append(line)
    return "\n".join(lines) + "\n"


class _Witness(Judge):
    """The judge, who also writes down what becomes of logs."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._stage = stage

    def on_append(self, replica: SimReplica, unit: Unit) -> None:
        super().on_append(replica, unit)
        if isinstance(unit.control, Configuration):
            self._stage.say(f"{replica.slot} goes by the members {members_in_words(unit.control)}")

    def on_adopt(self, replica: SimReplica, end: RaftPosition, chain: int) -> None:
        super().on_adopt(replica, end, chain)
        self._stage.say(f"{replica.slot} has the files up to {end}")

    def on_truncate(self, replica: SimReplica, position: RaftPosition, gone: list[Unit]) -> None:
        self._stage.say(f"{replica.slot} cuts {self._stage.shown(gone)} off its log")
        super().on_truncate(replica, position, gone)

    def on_commit(self, replica: SimReplica, before: int, now: RaftPosition) -> None:
        super().on_commit(replica, before, now)
        self._stage.say(f"{replica.slot} has committed up to {now}")

    def on_acknowledge(self, replica: SimReplica, end: int, value: int) -> None:
        super().on_acknowledge(replica, end, value)
        self._stage.say(f"{replica.slot} acknowledges {self._stage.name(value)}")

    def on_read(self, replica: SimReplica, read_id: int, position: RaftPosition) -> None:
        super().on_read(replica, read_id, position)
        self._stage.say(f"{replica.slot} serves the read at {position}")


class Stage(World):
    """A world in which nothing happens by chance but the waits of the cores, whose seeds are fixed."""

    def __init__(self, nodes: int, words: Sequence[str]) -> None:
        self.lines: list[str] = []
        """What happened since it was taken last."""
        self._names: dict[int, str] = {}
        self._held: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._losing: dict[tuple[int, int], int] = {}
        self._cut: set[tuple[int, int]] = set()
        self._loud = False
        self._show_beats = False
        super().__init__(0, _knobs(nodes, words))
        self._cut = self.network.cut
        self.judge = _Witness(self)
        self._loud = True

    # The world

    def sync_ends(self, replica: SimReplica) -> int:
        """When a sync that starts now ends."""
        return max(self.now + SYNC_US, replica.disk.stalled_until)

    def chance(self, stream: str) -> random.Random:
        """The random numbers of one purpose; a crash keeps nothing of what is not synced."""
        fixed: Any = _Fixed()
        return fixed if stream in ("crash", "install") else super().chance(stream)

    def send(self, sender: SimReplica, to: ReplicaId, message: Message, units: Sequence[Unit] = ()) -> None:
        """Let a message arrive, or wait, or be lost."""
        self.judge.on_message(sender, to, message)
        receiver = self.slot_of(node_of(to))
        way = (sender.slot, receiver.slot)
        fate = ""
        chain = sender.memory.chain_at(message.end.position) if isinstance(message, InstallOffer) else 0
        assert chain is not None
        deliver = partial(self._deliver, receiver, sender.identity, to, message, tuple(units), chain)
        is_beat = isinstance(message, Heartbeat)
        if way in self._cut:
            fate = "  (lost)"
        elif is_beat and self._losing.get(way):
            self._losing[way] -= 1
            self.say(f"{way[0]} -> {way[1]}  heartbeat  (lost)")
            return
        elif way in self._held:
            fate = "  (held)"
            self._held[way].append(deliver)
        else:
            self.after(MESSAGE_US, None, deliver)
        if not isinstance(message, Heartbeat | HeartbeatReply) or (
            is_beat and self._show_beats and way not in self._held
        ):
            self.say(f"{way[0]} -> {way[1]}  {message_in_words(message)}{fate}")

    def note(self, kind: int, *what: int) -> None:
        """A core has another role, or another leader."""
        super().note(kind, *what)
        if kind == 3 and self._loud:
            slot, term, leader = what
            core = self.slots[slot - 1].core
            assert core is not None
            if core.role is Role.LEADER:
                self.say(f"{slot} leads in term {term}")
            elif core.role is Role.FOLLOWER and leader != NO_REPLICA:
                self.say(f"{slot} follows {leader} in term {term}")
            elif core.role is not Role.FOLLOWER:
                self.say(f"{slot} is a {core.role.value} in term {term}")
            else:
                self.say(f"{slot} knows no leader in term {term}")

    def say(self, what: str) -> None:
        """Write a line."""
        if self._loud:
            self.lines.append(f"    {self.now / SECOND:7.3f}  {what}")

    def name(self, value: int) -> str:
        """The name of an appended batch."""
        return self._names.get(value, str(value))

    def shown(self, units: Sequence[Unit]) -> str:
        """Units by term."""
        parts: list[str] = []
        term = None
        for unit in units:
            if unit.term != term:
                parts.append(f"[{unit.term}")
                term = unit.term
            parts[-1] += f" {self._shown_entry(unit)}"
        return " ".join(f"{part}]" for part in parts) or "nothing"

    def _shown_entry(self, unit: Unit) -> str:
        if isinstance(unit.control, Configuration):
            return members_in_words(unit.control)
        return "." if unit.control is not None else self.name(unit.value)

    # Commands

    def do(self, words: list[str]) -> None:
        """Carry out a command."""
        match words:
            case ["wait", milliseconds]:
                self.run_until(self.now + int(milliseconds) * MILLISECOND)
            case ["until", node, "leads"]:
                self._until(lambda: _serves(self._node(node)), " ".join(words))
            case ["until", "acked", name]:
                self._until(lambda: any(self.name(value) == name for value in self.judge.acknowledged), " ".join(words))
            case ["append", node, *names]:
                self._append(self._node(node), names)
            case ["stand", node]:
                self._stand(self._node(node))
            case ["logs"]:
                self.lines += [f"    {self._state(replica)}" for replica in self.slots]
            case _:
                self._do_to_the_network(words)

    def _do_to_the_network(self, words: list[str]) -> None:
        match words:
            case ["cut", *sides]:
                at = sides.index("|")
                left, right = [int(each) for each in sides[:at]], [int(each) for each in sides[at + 1 :]]
                self._cut |= {(a, b) for a in left for b in right} | {(b, a) for a in left for b in right}
            case ["one-way", node, "->", *others]:
                self._cut |= {(int(node), int(other)) for other in others}
            case ["mend"]:
                self._cut.clear()
            case ["lose", count, "heartbeats", node, "->", other]:
                self._losing[int(node), int(other)] = int(count)
            case ["show", "heartbeats"]:
                self._show_beats = True
            case ["hold", node, "->", other]:
                self._held[int(node), int(other)] = []
            case ["release", node, "->", other]:
                for deliver in self._held.pop((int(node), int(other))):
                    self.after(MESSAGE_US, None, deliver)
            case _:
                self._do_to_a_node(words)

    def _do_to_a_node(self, words: list[str]) -> None:
        match words:
            case ["members", node, "voters", *names]:
                self._change_members(self._node(node), names)
            case ["alone", node]:
                self._lead_alone(self._node(node))
            case ["pause", node]:
                self._node(node).paused_until = _NEVER
            case ["go", "on", node]:
                self._go_on(self._node(node))
            case ["transfer", node, "->", other]:
                replica = self._node(node)
                assert replica.core is not None
                refusal = replica.core.transfer(replica.now(), replica_id(int(other)))
                if refusal is not None:
                    self.say(f"{node} refuses: {refusal.value}")
                replica.drain()
            case ["read", node, name]:
                self._read_at(self._node(node), name)
            case _:
                self._do_to_a_machine(words)

    def _do_to_a_machine(self, words: list[str]) -> None:
        match words:
            case ["crash", node]:
                self._node(node).crash()
            case ["start", node]:
                self._node(node).start()
            case ["wipe", node]:
                self._node(node).wipe(self.slots[0].first_configuration)
            case ["replace", node]:
                self._node(node).replace()
            case ["damage", node, position]:
                self._damage(self._node(node), int(position))
            case ["forget", node, position]:
                self._node(node).excused = True
                self._node(node).disk.image.truncate(int(position))
            case ["stall", node]:
                self._node(node).disk.stalled_until = _NEVER
            case ["sync", node]:
                replica = self._node(node)
                replica.disk.stalled_until = 0
                if replica.disk.syncing:
                    self.after(SYNC_US, replica, replica.synced)
            case _:
                raise ValueError(f"{' '.join(words)}: no such command")

    def _node(self, word: str) -> SimReplica:
        return self.slots[int(word) - 1]

    def _damage(self, replica: SimReplica, position: int) -> None:
        image = replica.disk.image
        replica.damaged_until = RaftPosition(image.end)
        replica.excused = True
        image.truncate(position)

    def _change_members(self, replica: SimReplica, names: Sequence[str]) -> None:
        core, at = replica.core, names.index("learns") if "learns" in names else len(names)
        assert core is not None
        identities = [self._node(name).identity for name in names if name != "learns"]
        refusal = core.propose_members(replica.now(), tuple(identities[:at]), tuple(identities[at:]))
        if refusal is not None:
            self.say(f"{replica.slot} refuses the change: {refusal.value}")
        replica.drain()

    def _lead_alone(self, replica: SimReplica) -> None:
        core = replica.core
        assert core is not None
        self.judge.on_alone(replica, [one for one in self.slots if one.core is not None])
        core.lead_alone(replica.now())
        replica.drain()

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        began = self.now
        while not holds():
            assert self.now - began < LIMIT_US, f"{what}: not within {LIMIT_US // SECOND} s"
            self.run_until(self.now + MILLISECOND)

    def _append(self, replica: SimReplica, names: Sequence[str]) -> None:
        for name in names:
            value = len(self._names) + 1
            self._names[value] = name
            if not replica.propose(value, 1):
                self.say(f"{replica.slot} refuses {name}: it does not lead")

    def _stand(self, replica: SimReplica) -> None:
        core = replica.core
        assert core is not None
        core.replica.now = replica.now()
        election.time_out(core.replica)
        replica.drain()

    def _go_on(self, replica: SimReplica) -> None:
        replica.paused_until = 0
        for one in self.timeline.take_all_at(_NEVER):
            self.at(self.now, one.replica, one.do, *one.arguments)

    def _read_at(self, replica: SimReplica, name: str) -> None:
        core = replica.core
        assert core is not None
        number = len(self._names) + 1
        self._names[number] = name
        self.judge.on_read_asked(number)
        refusal = core.read_barrier(replica.now(), ReadId(number))
        if refusal is not None:
            self.say(f"{replica.slot} refuses the read: {refusal.value}")
        replica.drain()

    def _state(self, replica: SimReplica) -> str:
        core = replica.core
        log: LogImage = replica.disk.image if core is None else replica.memory
        lacks = f"{log.base.position}| " if log.base.position else ""
        if core is None:
            return f"{replica.slot} is down      {lacks}{self.shown(log.units)}"
        synced = min(int(core.durable), log.end)
        ends = f"synced {synced}, committed {core.committed}"
        return f"{replica.slot} {core.role.value:9} term {core.term}  {lacks}{self.shown(log.units)}  {ends}"


def _serves(replica: SimReplica) -> bool:
    return replica.core is not None and replica.core.is_serving


def _knobs(nodes: int, words: Sequence[str]) -> Knobs:
    given: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        given[name] = {"yes": True, "no": False}[value] if value in ("yes", "no") else int(value)
    units, spares, fold = given.pop("units", 1000), given.pop("spares", 0), given.pop("fold", 0)
    return replace(
        draw_knobs(0),
        nodes=nodes,
        spares=spares,
        options=RaftOptions(**given),
        send_units=units,
        fold_units=fold,
        delay_us=MESSAGE_US,
        write_caching=False,
        cold_reads=0,
        loss=0,
        duplicate=0,
        recoveries=False,
    )


class _Fixed:
    """A crash keeps nothing of what is not synced; a transfer takes half of the longest time."""

    def randint(self, _low: int, _high: int) -> int:
        """As `random.Random`."""
        return 0

    def randrange(self, end: int) -> int:
        """As `random.Random`."""
        return end // 2


def main(paths: Sequence[str]) -> int:
    """Play files and rewrite their transcripts."""
    for path in paths:
        file = Path(path)
        file.write_text(play(file.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

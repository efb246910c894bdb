"""One run of ``millstream cluster take-over`` (`cluster_take_over`) with the disk of the dead broker, step by step."""

from __future__ import annotations

import base64
import json
import os
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.app.cluster_status import NAMED_MAX
from millstream.app.lock import lock_data_dir
from millstream.cli.broker_http import ask_http
from millstream.cli.cluster import cluster_status
from millstream.cli.cluster_changes import ASK_S, change_cluster, terminal_bar
from millstream.cli.cluster_recover import who_and_when
from millstream.cli.connect import admin_client, explained
from millstream.cli.failure import CommandFailed
from millstream.cli.output import remark
from millstream.cli.take_over_plan import Place, beyond_reach, going, new_replicas, waiting
from millstream.cluster.identity import Identity, load_identity, save_identity
from millstream.core.controller.profile import PeerAddress
from millstream.errors import MillstreamError
from millstream.model.cluster import INCARNATION_BYTES
from millstream.storage.disk import load_disk, replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.cli.broker_child import BrokerChild
    from millstream.config.forms import Endpoint

LOOK_S: Final = 0.25
_STORE_PATIENCE_S: Final = 30.0
"""Time without an upload after which the remaining records move between brokers instead."""
_AT_ONCE: Final = NAMED_MAX // 2
"""Partitions that start to move together; the status of the cluster names all of them."""
_DONE: Final = "taken-over.json"


class TakeOver:
    """One run of the command."""

    settings: tuple[str, ...] = ()
    """Of the broker that this command runs, besides those that are given."""

    def __init__(self, node: int, data: str, bootstrap: str, timeout_s: float) -> None:
        self._node = node
        self._data = data
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._disk = load_disk("")
        self._done_path = os.path.join(data, _DONE)

    def fence(self, peer: Endpoint) -> bool:
        """Have the earlier life of the disk fenced; False if it was taken over before. Raises CommandFailed."""
        if not os.path.isdir(self._data):
            raise CommandFailed(f"there is no directory {self._data}")
        status = cluster_status(self._bootstrap, ASK_S)
        try:
            lock = lock_data_dir(self._data)
            try:
                identity = self._identity(status["cluster_id"])
                return self._fence(identity, peer)
            finally:
                os.close(lock)
        except (MillstreamError, OSError) as error:
            raise CommandFailed(getattr(error, "message", str(error))) from None

    def _identity(self, cluster_id: str) -> Identity:
        identity = load_identity(self._disk, self._data)
        if identity is None or not identity.cluster_id:
            raise CommandFailed(f"{self._data} is not the data directory of a broker of a cluster")
        if identity.cluster_id != cluster_id:
            raise CommandFailed(f"{self._data} belongs to cluster {identity.cluster_id}, not to {cluster_id}")
        if identity.node_id != self._node:
            raise CommandFailed(f"{self._data} belongs to broker {identity.node_id}, not {self._node}")
        return identity

    def _fence(self, identity: Identity, peer: Endpoint) -> bool:
        following = identity.next_incarnation or secrets.token_hex(INCARNATION_BYTES)
        if not identity.next_incarnation:
            identity = msgspec.structs.replace(identity, next_incarnation=following)
            save_identity(self._disk, self._data, identity)
        request = {
            "type": "take_over",
            "node": self._node,
            "previous": _base64(identity.incarnation),
            "incarnation": _base64(following),
            "peer": msgspec.to_builtins(PeerAddress(peer.host, peer.port)),
            "reason": who_and_when("millstream cluster take-over"),
        }
        try:
            change_cluster(self._bootstrap, request)
        except CommandFailed as refused:
            if os.path.exists(self._done_path) and "nothing of it is needed" in str(refused):
                return False
            raise
        taken = msgspec.structs.replace(identity, incarnation=following, next_incarnation="")
        save_identity(self._disk, self._data, taken)
        remark(f"the earlier life of broker {self._node} is fenced")
        if self._mode() == "serving":
            self._set_mode("drained")
        return True

    def upload(self, child: BrokerChild) -> int:
        """Wait until the store has the tail of every shared partition, or takes nothing for some time; bytes that it
        has got. Producers may continue: what they add moves as records.
        """
        self._await_leaders(child)
        ends = _ends(child)
        left = first = _not_uploaded(child, ends)
        moved_at = time.monotonic()
        with terminal_bar() as bar:
            task = None if bar is None else bar.add_task("records that no object has", total=None)
            while left:
                if time.monotonic() - moved_at > _STORE_PATIENCE_S:
                    remark(f"the store takes nothing: {left} records of shared topics move as records")
                    break
                time.sleep(LOOK_S)
                now = _not_uploaded(child, ends)
                moved_at = time.monotonic() if now < left else moved_at
                left, first = now, max(first, now)
                if bar is not None and task is not None:
                    bar.update(task, total=first, completed=first - left)
        return int(child.metric("millstream_archive_uploaded_bytes_total"))

    def _await_leaders(self, child: BrokerChild) -> None:
        """Until the disk's broker leads what no other broker can lead: before that it does not know what is
        committed.
        """
        limit = time.monotonic() + self._timeout_s
        while True:
            child.check()
            alive = self._alive()
            needed = waiting(self._places(), self._node, alive)
            if lacking := beyond_reach(needed, self._node, alive):
                nodes = ", ".join(map(str, lacking[0].replicas))
                raise CommandFailed(
                    f"{len(lacking)} partitions have no majority with broker {self._node} either, such as "
                    f"{lacking[0].topic}/{lacking[0].partition} (brokers {nodes}): start another one of them first, "
                    "and give the command again"
                )
            names = {(place.topic, place.partition) for place in needed}
            left = sum(place.leader < 0 for place in needed) + sum(
                not one["leads"] and (one["topic"], one["partition"]) in names for one in shared_partitions(child)
            )
            if not left:
                return
            if time.monotonic() >= limit:
                raise CommandFailed(f"{left} partitions have no leader yet; give the command again")
            time.sleep(LOOK_S)

    def move(self, child: BrokerChild) -> list[Place]:
        """Move what no majority of others has to live brokers; returns when they have it."""
        moved: dict[tuple[str, int], Place] = {}
        limit, total = time.monotonic() + self._timeout_s, 0
        with terminal_bar() as bar:
            task = None if bar is None else bar.add_task("partitions move to live brokers", total=None)
            while needed := self._left(moved):
                child.check()
                asked = [place for place in needed if (place.topic, place.partition) not in moved]
                under_way = sum((place.topic, place.partition) in moved for place in needed)
                asked = asked[: max(0, _AT_ONCE - under_way)]
                if asked:
                    self._reassign(asked)
                total = max(total, len(moved) + len(needed) - under_way)
                moved |= {(place.topic, place.partition): place for place in asked}
                if bar is not None and task is not None:
                    bar.update(task, total=total, completed=total - len(needed))
                if time.monotonic() >= limit:
                    raise CommandFailed(
                        f"{len(needed)} partitions have not moved after {self._timeout_s:.0f} s; give the command again"
                    )
                time.sleep(LOOK_S)
        return list(moved.values())

    def retire(self, moved: list[Place]) -> None:
        """The disk's broker has stopped: it never comes back."""
        if left := self._left({}):
            name = f"{left[0].topic}/{left[0].partition}"
            raise CommandFailed(f"{name} was given to broker {self._node} since; give the command again")
        names = [f"{place.topic}/{place.partition}" for place in moved]
        done = {"broker": self._node, "partitions": names, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        replace_file(self._disk, self._done_path, json.dumps(done).encode())
        if self._mode() == "drained":
            self._set_mode("serving")
        limit = time.monotonic() + self._timeout_s
        request = {
            "type": "declare_lost",
            "nodes": [self._node],
            "reason": who_and_when("taken over: millstream cluster take-over"),
        }
        while True:
            try:
                change_cluster(self._bootstrap, request)
                return
            except CommandFailed as refused:
                if "is alive" not in str(refused) or time.monotonic() >= limit:
                    raise  # else it counts as alive for a moment
                time.sleep(LOOK_S)

    def _reassign(self, places: list[Place]) -> None:
        live = self._live()
        parts = [[place.topic, place.partition, new_replicas(place, self._node, live)] for place in places]
        change_cluster(self._bootstrap, {"type": "reassign_partitions", "partitions": parts})

    def _left(self, moved: Mapping[tuple[str, int], Place]) -> list[Place]:
        """What has to move, and what moves away from the disk or is in ``moved`` and still moves: its Raft group may
        need the disk until the end.
        """
        places = self._places()
        still = [place for place in places if place.target and ((place.topic, place.partition) in moved)]
        return sorted({*waiting(places, self._node, self._alive()), *going(places, self._node), *still})

    def _places(self) -> list[Place]:
        """Every partition; one that moves is held by the brokers of before and by those that it moves to."""
        moves = {(one["topic"], one["partition"]): tuple(one["target"]) for one in self._moves()}
        with explained("the partitions of the cluster", self._bootstrap):
            topics = admin_client(self._bootstrap).list_topics(timeout=ASK_S).topics.items()
        return [
            Place(name, index, tuple(part.replicas), part.leader, moves.get((name, index), ()))
            for name, topic in topics
            for index, part in topic.partitions.items()
        ]

    def _moves(self) -> list[dict[str, Any]]:
        """The partitions that move, when they are so few that all of them are named."""
        limit = time.monotonic() + self._timeout_s
        while True:
            status = cluster_status(self._bootstrap, ASK_S)
            if status["moves_count"] == len(status["moves"]):
                moves: list[dict[str, Any]] = status["moves"]
                return moves
            if time.monotonic() >= limit:
                raise CommandFailed(f"{status['moves_count']} partitions move still; give the command again")
            time.sleep(LOOK_S)

    def _alive(self) -> set[int]:
        """Other brokers that vote, also those that are drained or leave."""
        brokers = cluster_status(self._bootstrap, ASK_S)["brokers"]
        return {one["id"] for one in brokers if one["alive"] and one["id"] != self._node}

    def _live(self) -> dict[int, int]:
        """Replicas of each live broker that takes more."""
        brokers = cluster_status(self._bootstrap, ASK_S)["brokers"]
        return {
            one["id"]: one["replicas"]
            for one in brokers
            if one["alive"] and one["mode"] == "serving" and one["id"] != self._node
        }

    def _mode(self) -> str:
        brokers = cluster_status(self._bootstrap, ASK_S)["brokers"]
        return next((one["mode"] for one in brokers if one["id"] == self._node), "gone")

    def _set_mode(self, mode: str) -> None:
        change_cluster(self._bootstrap, {"type": "set_broker_mode", "node": self._node, "mode": mode})


def shared_partitions(child: BrokerChild) -> list[dict[str, Any]]:
    """The shared partitions of the disk."""
    child.check()
    return [one for one in ask_http(f"{child.http}/v1/tiers", ASK_S)["partitions"] if one["shared"]]


def _ends(child: BrokerChild) -> dict[tuple[str, int], int]:
    """Where the committed records of each shared partition end that the disk's broker leads."""
    shared = shared_partitions(child)
    return {(one["topic"], one["partition"]): one["high_watermark"] for one in shared if one["leads"]}


def _not_uploaded(child: BrokerChild, ends: Mapping[tuple[str, int], int]) -> int:
    """Records before ``ends`` of shared partitions led by the disk's broker that no committed object has."""
    return sum(
        max(0, ends.get((one["topic"], one["partition"]), 0) - max(one["archived_end_offset"], one["log_start_offset"]))
        for one in shared_partitions(child)
        if one["leads"]
    )


def _base64(incarnation: str) -> str:
    return base64.b64encode(bytes.fromhex(incarnation)).decode()

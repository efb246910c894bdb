"""Take-over of a dead broker whose disk is lost, from the object store (``shared.wal=object``).

::

    DIR is empty ► it is marked ► a broker on DIR, here, with the id of the dead one and --replace
        ► the store: the logs of the dead one are sealed ► controller: its disk is fenced permanently
        ► the shared partitions that only that disk had are restored ► the rest is as with a disk (`taking_over`)

What else only the lost disk had is not in the store: it stays lost, and is named.

**The dead broker is only paused, or cut off.** Its log is sealed in the store before anything is read, so it
acknowledges nothing more there; the others close its connections, and it stops as soon as it learns of that.
**Crash.** DIR is the disk of the broker from the start on, so the command, given again with it, continues where it was.
If DIR is lost, too, the command starts again on another one: what is in the store is all that it needs. Only a
partition that was on its way to a live broker then waits for DIR.
**Refused**, with nothing changed: a broker that is alive; one that is not registered; a directory that has anything in
it but an earlier take-over of this broker; brokers without ``shared.wal=object``.
**The store is away.** The broker on DIR does not start, or asks again until ``--timeout``.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Final

from millstream.cli.cluster import cluster_status
from millstream.cli.cluster_changes import ASK_S
from millstream.cli.connect import admin_client, broker_configs, explained
from millstream.cli.failure import CommandFailed
from millstream.cli.output import remark
from millstream.cli.take_over_plan import Place, waiting
from millstream.cli.taking_over import LOOK_S, TakeOver, shared_partitions
from millstream.cluster.identity import load_identity
from millstream.errors import MillstreamError
from millstream.storage.disk import replace_file

if TYPE_CHECKING:
    from millstream.cli.broker_child import BrokerChild
    from millstream.config.forms import Endpoint

_BEGUN: Final = "taken-over-from-store.json"


class TakeOverFromStore(TakeOver):
    """One run of the command; ``data`` is the directory on which the broker here works."""

    settings = ("shared.wal=object", "broker.replace=true")

    def __init__(self, node: int, data: str, bootstrap: str, timeout_s: float) -> None:
        super().__init__(node, data, bootstrap, timeout_s)
        self._peer: Endpoint | None = None
        self._modes: dict[str, str] = {}
        """The storage.mode of topics that were asked for."""

    def fence(self, peer: Endpoint) -> bool:
        """Check that the broker is dead, and that the store has its records; False if it was taken over before. Raises
        CommandFailed.
        """
        self._peer = peer
        try:
            os.makedirs(self._data, mode=0o700, exist_ok=True)
            begun = self._has_begun()
            identity = load_identity(self._disk, self._data) if begun else None
        except (MillstreamError, OSError) as error:
            raise CommandFailed(getattr(error, "message", str(error))) from None
        if identity is not None and (identity.next_incarnation or os.path.exists(self._done_path)):
            return super().fence(peer)  # it was at its end
        self._check()
        if not begun:
            replace_file(self._disk, os.path.join(self._data, _BEGUN), json.dumps({"broker": self._node}).encode())
        if self._mode() == "serving":
            self._set_mode("drained")
        return True

    def _has_begun(self) -> bool:
        """Whether the directory is that of an earlier run for this broker. Raises CommandFailed if it is another's."""
        path = os.path.join(self._data, _BEGUN)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                node = json.load(file)["broker"]
            if node != self._node:
                raise CommandFailed(f"{self._data} is that of a take-over of broker {node}, not {self._node}")
            return True
        if os.listdir(self._data):
            raise CommandFailed(
                f"{self._data} is not empty, and not the directory of an earlier take-over; if it is the disk of the "
                "dead broker, give it with --data"
            )
        return False

    def _check(self) -> None:
        status = cluster_status(self._bootstrap, ASK_S)["brokers"]
        if not any(one["id"] == self._node for one in status):
            raise CommandFailed(f"broker {self._node} is not registered")
        if any(one["id"] == self._node and one["alive"] for one in status):
            raise CommandFailed(
                f"broker {self._node} is alive, or was a moment ago: stop it permanently and wait until it "
                "counts as not alive"
            )
        wal = broker_configs(admin_client(self._bootstrap), self._bootstrap, ASK_S).get("shared.wal")
        if wal is None or wal.value != "object":
            raise CommandFailed(
                "the brokers have shared.wal=disk: without the disk of the dead broker (--data) what was not uploaded "
                f"is lost; to continue without it, start broker {self._node} with an empty directory and --replace"
            )

    def _await_leaders(self, child: BrokerChild) -> None:
        """Until the broker here has restored every partition that is to move."""
        limit = time.monotonic() + self._timeout_s
        while True:
            leads = {(one["topic"], one["partition"]) for one in shared_partitions(child) if one["leads"]}
            needed = waiting(self._places(), self._node, self._alive())
            left = [place for place in needed if (place.topic, place.partition) not in leads]
            if not left:
                return
            if time.monotonic() >= limit:
                name = f"{left[0].topic}/{left[0].partition}"
                raise CommandFailed(f"{len(left)} partitions, such as {name}, are not restored; give the command again")
            time.sleep(LOOK_S)

    def retire(self, moved: list[Place]) -> None:
        """The broker here has stopped. Its directory counts as taken over, as a disk does, and never comes back."""
        limit = time.monotonic() + self._timeout_s
        while True:
            try:
                assert self._peer is not None, "retired before it was fenced"
                super().fence(self._peer)
                break
            except CommandFailed as refused:
                if "is alive" not in str(refused) or time.monotonic() >= limit:
                    raise  # else it counts as alive for a moment
                time.sleep(LOOK_S)
        super().retire(moved)
        lost = [place for place in waiting(super()._places(), self._node, self._alive()) if not place.target]
        if lost:
            remark(
                f"{len(lost)} partitions, such as {lost[0].topic}/{lost[0].partition}, have no majority without the "
                "lost disk and no log in the store: what only that disk had of them is lost"
            )

    def _places(self) -> list[Place]:
        """Those of shared topics that the dead broker had alone, or shares with the broker that they move to."""
        places = [place for place in super()._places() if len(place.replicas) == 1 or place.target]
        return [place for place in places if self._node in place.replicas and self._is_shared(place.topic)]

    def _is_shared(self, topic: str) -> bool:
        found = self._modes.get(topic)
        if found is None:
            from millstream.cli.confluent import ConfigResource, ResourceType

            client = admin_client(self._bootstrap)
            resource = ConfigResource(ResourceType.TOPIC, topic)
            with explained(f"topic {topic}", self._bootstrap):
                future = next(iter(client.describe_configs([resource], request_timeout=ASK_S).values()))
                found = self._modes[topic] = future.result(ASK_S)["storage.mode"].value
        return found == "shared"

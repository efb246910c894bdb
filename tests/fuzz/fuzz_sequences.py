"""Whole requests in sequences: what earlier answers named (ids, epochs, sessions, offsets) stands in the later ones.

Bent requests (``fuzz_live``) seldom come behind a login, a session or an epoch. Here several connections speak at once,
each in bursts, about the same groups, producers and topics of every kind; some go before their answers come.
"""

import socket
import struct
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection
from contextlib import closing
from random import Random
from typing import Any, Final

from fuzz_live import ANSWER_S, World

from millstream.kafka.served import SERVED
from millstream.wire.apis import APIS
from millstream.wire.codec import decode_response, response_header_version
from millstream.wire.frames import request_frame
from millstream.wire.records import build_batch
from millstream.wire.schema import Kind, Message, Type

EPOCHS: Final = (
    *("member_epoch", "producer_epoch", "generation_id", "generation_id_or_member_epoch"),
    *("session_epoch", "share_session_epoch", "leader_epoch", "current_leader_epoch"),
)
"""Fields that may have each other's values."""

_NAMES: Final = dict.fromkeys(EPOCHS, "epoch")
_RARE: Final = {
    "DeleteTopics": 0.02,
    "CreatePartitions": 0.2,
    "DeleteRecords": 0.5,
    "UpdateFeatures": 0.1,
    "UnregisterBroker": 0.0,
    "AlterPartitionReassignments": 0.3,
}
"""Requests that would soon leave nothing to talk about, and how often they are sent all the same."""


class Remembering(World):
    """A world that learns from answers, but nothing of what is ``apart``. Several threads use it."""

    def __init__(self, topics: dict[str, bytes], apart: Collection[str | bytes] = ()) -> None:
        super().__init__(topics)
        self._apart = apart
        self._known: defaultdict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=12))
        self._sequences: Counter[int] = Counter()
        self._known["transactional_id"].extend(("fuzz-tx-1", "fuzz-tx-2"))
        self._known["group_id"].extend(("fuzz-group-1", "fuzz-group-2", "fuzz-share-1"))

    def learn(self, answer: Message) -> None:
        """Keep what an answer names."""
        for name in answer.__struct_fields__:
            value = getattr(answer, name)
            for one in value[:4] if isinstance(value, list) else (value,):
                if isinstance(one, Message):
                    self.learn(one)
                elif _can_be_named(one) and one not in self._apart:
                    self._known[_NAMES.get(name, name)].append(one)

    def _value(self, rng: Random, kind: Type, name: str, version: int) -> Any:
        known = list(self._known.get(_NAMES.get(name, name), ()))
        if kind.kind is Kind.RECORDS and rng.random() < 0.7:
            return self._batch(rng)
        if known and kind.kind not in (Kind.STRUCT, Kind.ARRAY, Kind.RECORDS) and rng.random() < 0.55:
            value = rng.choice(known)
            match kind.kind:
                case Kind.STRING if isinstance(value, str):
                    return value
                case Kind.UUID if isinstance(value, bytes):
                    return value
                case number if number.size <= 8 and number.size and isinstance(value, int):
                    value += rng.choice((0, 0, 0, 1, -1))
                    return value if _fits(value, number) else 0
                case _:
                    pass
        return super()._value(rng, kind, name, version)

    def _batch(self, rng: Random) -> bytes:
        """A batch of a producer that an answer named, in its sequence or not, or of none."""
        count = rng.choice((1, 2, 5))
        keys, values = (None, b"k1", b"k2", b"k3"), (None, b"", b"value", b"v" * 2000)
        records = [(rng.choice(keys), rng.choice(values), (), -1) for _ in range(count)]
        producers = [one for one in list(self._known["producer_id"]) if one >= 0]
        if not producers or rng.random() < 0.4:
            return build_batch(records)
        producer, epochs = rng.choice(producers), [one for one in list(self._known["epoch"]) if 0 <= one < 1 << 15]
        sequence = rng.choice((0, self._sequences[producer], self._sequences[producer], 1))
        self._sequences[producer] = sequence + count
        return build_batch(
            records,
            producer_id=producer,
            producer_epoch=rng.choice(epochs or [0]),
            base_sequence=sequence,
            transactional=rng.random() < 0.5,
        )


def _can_be_named(value: object) -> bool:
    """Whether it is a number, a name or an id."""
    if isinstance(value, bytes):
        return len(value) == 16
    return isinstance(value, int | str) and not isinstance(value, bool)


def _fits(value: int, kind: Kind) -> bool:
    bits = 8 * kind.size
    low = 0 if kind in (Kind.UINT16, Kind.UINT32) else -(1 << bits - 1)
    return low <= value < low + (1 << bits)


class Speakers:
    """Connections in threads of their own, until each has sent its requests. ``answered`` counts by API."""

    def __init__(self, world: Remembering, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = host, int(port)
        self._world = world
        self.answered: Counter[int] = Counter()
        self.faults: list[BaseException] = []

    def speak(self, seed: object, connections: int, requests: int) -> None:
        """Send ``requests`` over each of ``connections`` at once. Raises what a thread raised."""
        threads = [
            threading.Thread(target=self._run, args=(Random(f"{seed}/{one}"), requests)) for one in range(connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.faults:
            raise self.faults[0]

    def _run(self, rng: Random, requests: int) -> None:
        try:
            sent = 0
            while sent < requests:
                sent += self._converse(rng, requests - sent)
        except BaseException as fault:  # noqa: BLE001 (raised again by ``speak``)
            self.faults.append(fault)

    def _converse(self, rng: Random, requests: int) -> int:
        """One connection, to its end. Returns how many requests it has sent."""
        sent = 0
        with closing(socket.create_connection(self._address, timeout=60)) as connection:
            connection.settimeout(ANSWER_S)
            while sent < requests:
                burst = [self._request(rng, sent + one) for one in range(rng.choice((1, 1, 1, 3, 8)))]
                sent += len(burst)
                try:
                    connection.sendall(b"".join(frame for _, _, frame in burst))
                    if rng.random() < 0.05 or not self._answers(connection, burst, sent - len(burst)):
                        break
                except OSError:
                    break  # it waits for longer than this client does, or the broker has refused a request
        return sent

    def _request(self, rng: Random, number: int) -> tuple[int, int, bytes]:
        while True:
            api = APIS[rng.choice(tuple(SERVED))]
            if rng.random() < _RARE.get(api.name, 1.0):
                break
        version = rng.choice((api.versions[1], api.versions[1], rng.randint(*api.versions)))
        message = self._world.message(rng, api.request, version)
        return api.key, version, bytes(request_frame(message, version, number, "fuzz"))

    def _answers(self, connection: socket.socket, burst: list[tuple[int, int, bytes]], first: int) -> bool:
        """Read the answers of a burst. False if one has none (``acks=0``): what comes then is not known."""
        for number, (key, version, _) in enumerate(burst, first):
            size = struct.unpack(">i", _exactly(connection, 4))[0]
            body = _exactly(connection, size)
            if struct.unpack_from(">i", body)[0] != number:
                return False
            at = 5 if response_header_version(key, version) else 4
            self._world.learn(decode_response(key, version, memoryview(body), at, size))
            self.answered[key] += 1
        return True


def _exactly(connection: socket.socket, size: int) -> bytes:
    found, until = b"", time.monotonic() + ANSWER_S
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece or time.monotonic() > until:
            raise ConnectionError("the connection has ended")
        found += piece
    return found

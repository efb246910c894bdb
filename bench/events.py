"""Event topics: pushed and consumed through our Python client, beside a bare loop that only receives, writes and syncs.

    python -m bench.events      (started by :func:`measure`, see ``child``)

One partition, 128 bytes of metadata an event. The client is a process of its own. What is consumed is verified: every
event once, in order, with data of the right size. The bare loop gets the batches of the first load ready made, one in
flight, and answers each after its sync.

The selective read takes a tenth of every tenth event of a data set that is far larger than the log cache: its broker
has little memory. Its figure is what the broker's processes read from files (``rchar`` of ``/proc/PID/io``), metadata
and index included, over what was selected.
"""

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench import processes
from bench.child import Child, instructions
from bench.rows import Alone, Figures, Plan, Say
from bench.subjects import Subject
from millstream.events import DataDescriptor, EventsClient, SubView, Topic
from millstream.format.events.batch import build_event_batch
from millstream.model.events import DataPosition

ALONE = Alone(peer_too=False, one_of_ours=True)
LITTLE_MEMORY = Alone(ours={"memory.bytes": "256MiB"}, peer_too=False, one_of_ours=True)
TIMEOUT_S = 600.0
DATA = b"d" * 1024
LARGE_BYTES = 256 << 10
ACKS = 400
Steps = tuple[tuple[str, Callable[[], Any]], ...]
"""What a client does, one after the other: what it says, and the load."""


def _metadata(number: int) -> dict[str, Any]:
    """128 bytes as JSON text."""
    return {"detector": "front-2", "run": 17, "frame": f"{number:09d}", "exposure": 0.25, "note": "n" * 49}


def measure(subject: Subject, plan: Plan, say: Say) -> Figures:
    """Rates, CPU of both sides an event, latency of single events."""
    return _measured(subject, {"events": 200_000 if plan.measured_s > 2 else 60_000}, say)


def measure_selective(subject: Subject, plan: Plan, say: Say) -> Figures:
    """What a selective read reads of a data set of twice the bulk load."""
    return _measured(subject, {"large": plan.bulk_bytes * 2 // LARGE_BYTES}, say)


def _measured(subject: Subject, load: dict[str, int], say: Say) -> Figures:
    figures: Figures = {}
    with Child("bench.events", {"bootstrap": subject.bootstrap, **load}) as client:
        while (heard := client.hear(TIMEOUT_S)) != "done":
            say(heard)
            before, read = subject.cpu_seconds(), _bytes_read(subject.pid)
            client.tell("go")
            found = client.hear(TIMEOUT_S)
            count = found.pop("count", 0)
            if count:
                name = found.pop("name")
                found[f"{name}_broker_us"] = (subject.cpu_seconds() - before) / count * 1e6
            if "selected" in found:
                was_read, selected = _bytes_read(subject.pid) - read, found["selected"]
                found = {"read_ratio": was_read / selected, "selected_mb": selected / 1e6, "read_mb": was_read / 1e6}
            figures |= found
        client.result(TIMEOUT_S)
    return figures


def _bytes_read(pid: int) -> int:
    total = 0
    for one in processes.tree(pid):
        with open(f"/proc/{one}/io", encoding="ascii") as told_by_kernel:
            total += int(told_by_kernel.readline().split()[1])
    return total


def _timed(name: str, count: int, load: Callable[[], None]) -> dict[str, Any]:
    """The rate of a load and this process' CPU."""
    cpu, begun = time.process_time(), time.perf_counter()
    load()
    seconds = time.perf_counter() - begun
    client_us = (time.process_time() - cpu) / count * 1e6
    return {"name": name, "count": count, f"{name}_per_s": count / seconds, f"{name}_client_us": client_us}


def _push(topic: Topic, count: int, data: bytes, batch_size: int) -> None:
    last = None
    with topic.producer(batch_size=batch_size) as producer:
        for number in range(count):
            last = producer.push(_metadata(number), data)
    assert last is not None and last.result(TIMEOUT_S) == count - 1


def _consume(topic: Topic, count: int, size: int) -> None:
    with topic.consumer("bench", targets=[0]) as consumer:
        for number in range(count):
            event = consumer.pull(TIMEOUT_S)
            assert event.id == number and sum(map(len, event.data)) == size, event


def _acks(topic: Topic) -> Figures:
    taken: list[float] = []
    with topic.producer(batch_size=1) as producer:
        for number in range(ACKS):
            begun = time.perf_counter()
            producer.push(_metadata(number), DATA).result(TIMEOUT_S)
            taken.append((time.perf_counter() - begun) * 1000)
    taken.sort()
    return {"ack_p50_ms": taken[ACKS // 2], "ack_p99_ms": taken[ACKS * 99 // 100]}


def _select(topic: Topic, count: int) -> dict[str, Any]:
    part = SubView(DataPosition(LARGE_BYTES // 3), LARGE_BYTES // 10)
    selected = 0

    def select(metadata: dict[str, Any], descriptor: DataDescriptor) -> DataDescriptor | None:
        return descriptor.narrowed(part) if int(metadata["frame"]) % 10 == 0 else None

    def allocate(_: dict[str, Any], descriptor: DataDescriptor) -> list[bytearray]:
        return [bytearray(descriptor.size)]

    with topic.consumer("selective", targets=[0], data_selector=select, data_allocator=allocate) as consumer:
        for _ in range(count):
            selected += sum(map(len, consumer.pull(TIMEOUT_S).data))
    assert selected == (count + 9) // 10 * part.size
    return {"selected": selected}


def _bare(count: int) -> Figures:
    """Batches of the first load to a loop that does nothing else: events a second."""
    text = json.dumps(_metadata(0), separators=(",", ":")).encode()
    frame = b"".join(build_event_batch([text] * 256, [[DATA]] * 256, now_ms=1))  # type: ignore[arg-type]
    with (
        tempfile.TemporaryDirectory(prefix="bench-bare-") as directory,
        Child("bench.events", {"bare": directory}) as loop,
        socket.create_connection(("127.0.0.1", loop.hear())) as connection,
    ):
        begun = time.perf_counter()
        for _ in range(count // 256):
            connection.sendall(len(frame).to_bytes(4, "big") + frame)
            assert connection.recv(1) == b"."
        return {"bare_per_s": count // 256 * 256 / (time.perf_counter() - begun)}


def serve_bare(directory: str) -> None:
    """Receive a batch, write it, sync, answer; until the client goes."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps(listener.getsockname()[1]), flush=True)
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as incoming, open(f"{directory}/log", "wb", buffering=0) as log:
        while head := incoming.read(4):
            log.write(incoming.read(int.from_bytes(head, "big")))
            os.fdatasync(log.fileno())
            connection.sendall(b".")


def _topic(client: EventsClient, name: str) -> Topic:
    client.create_topic(name)
    return client.open_topic(name)


def _of_events(client: EventsClient, count: int) -> Steps:
    events, metadata, single = (_topic(client, name) for name in ("events", "metadata", "single"))
    return (
        ("pushing 1 KiB", lambda: _timed("produced", count, lambda: _push(events, count, DATA, 256))),
        ("consuming", lambda: _timed("consumed", count, lambda: _consume(events, count, len(DATA)))),
        ("pushing metadata", lambda: _timed("metadata", count, lambda: _push(metadata, count, b"", 1024))),
        ("consuming metadata", lambda: _timed("metadata_consumed", count, lambda: _consume(metadata, count, 0))),
        ("pushing one by one", lambda: _acks(single)),
        ("a bare loop", lambda: _bare(count)),
    )


def _of_data_set(client: EventsClient, count: int) -> Steps:
    large = _topic(client, "large")
    return (
        ("pushing a data set", lambda: _push(large, count, bytes(LARGE_BYTES), 8) or {}),
        ("reading a hundredth of it", lambda: _select(large, count)),
    )


def main() -> None:
    """The client, or the bare loop."""
    what = instructions()
    if "bare" in what:
        serve_bare(what["bare"])
        return
    with EventsClient(what["bootstrap"], timeout_s=TIMEOUT_S) as client:
        for says, step in (
            _of_data_set(client, what["large"]) if "large" in what else _of_events(client, what["events"])
        ):
            print(json.dumps(says), flush=True)
            input()
            print(json.dumps(step()), flush=True)
    print(json.dumps("done"), flush=True)
    print("{}", flush=True)


if __name__ == "__main__":
    main()

"""Other people's clients behind one small face, so that one test fits all.

A client offers ``producer(bootstrap, topic)`` with ``send(values)`` (returns when all are acknowledged) and
``close()``, and ``consumer(bootstrap, topic, group)`` with ``take(wanted, timeout_s)`` (returns what it was given
until it has seen all of ``wanted``), ``commit()`` and ``close()``. Nothing of a client is patched; its options are
those a user would set. Every producer here is idempotent, so no value may ever stand twice.
"""

import asyncio
import contextlib
import os
import queue
import subprocess
import threading
import time

SEND_TIMEOUT_S = 120
SESSION_MS = 10_000  # a member whose leave was lost in a kill holds its successor up for this long
QUIET = {"log_level": 2}  # a broker that was killed refuses connections; librdkafka would say so many times a second


class Taking:
    """``take`` for clients that poll: subclasses give ``poll() -> list[str]``."""

    def take(self, wanted, timeout_s=150):
        missing, got = set(wanted), []
        deadline = time.monotonic() + timeout_s
        while missing:
            values = self.poll()
            got += values
            missing.difference_update(values)
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{len(missing)} of {len(set(wanted))} values did not come: {sorted(missing)[:5]} …"
                )
        return got


class ConfluentProducer:
    def __init__(self, bootstrap, topic):
        from confluent_kafka import Producer

        self.topic = topic
        self.producer = Producer({**QUIET, "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})

    def send(self, values):
        errors = []
        for value in values:
            self.producer.produce(
                self.topic, value, key=value, on_delivery=lambda e, m: errors.append(e) if e else None
            )
            self.producer.poll(0)
        assert self.producer.flush(SEND_TIMEOUT_S) == 0
        assert not errors, errors[0]

    def close(self):
        self.producer.flush(1)


class ConfluentConsumer(Taking):
    def __init__(self, bootstrap, topic, group, **options):
        from confluent_kafka import Consumer

        self.consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                **options,
            }
        )
        self.consumer.subscribe([topic])

    def poll(self):
        messages = self.consumer.consume(500, 0.2)
        return [m.value().decode() for m in messages if m.error() is None]

    def commit(self):
        self.consumer.commit(asynchronous=False)

    def close(self):
        self.consumer.close()


class KafkaPythonProducer:
    def __init__(self, bootstrap, topic):
        from kafka import KafkaProducer

        self.topic = topic
        self.producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=2, enable_idempotence=True)

    def send(self, values):
        futures = [self.producer.send(self.topic, value.encode(), key=value.encode()) for value in values]
        self.producer.flush(SEND_TIMEOUT_S)
        for future in futures:
            future.get(SEND_TIMEOUT_S)

    def close(self):
        self.producer.close(5)


POLL_MS = 20_000
"""Longer than a rebalance on a busy machine: a poll of kafka-python 3.0.12 that ends in the middle of a second join
forgets the answer to it, and the consumer then waits for ever without sending a request."""


class KafkaPythonConsumer(Taking):
    def __init__(self, bootstrap, topic, group):
        from kafka import KafkaConsumer

        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
        )

    def poll(self):
        records = self.consumer.poll(timeout_ms=POLL_MS)
        return [record.value.decode() for part in records.values() for record in part]

    def commit(self):
        self.consumer.commit()

    def close(self):
        self.consumer.close(autocommit=False)


class Loop:
    """An event loop in a thread, so that a client keeps its heartbeats while the test does something else."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine, timeout_s=SEND_TIMEOUT_S):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class AiokafkaProducer:
    def __init__(self, bootstrap, topic):
        self.topic = topic
        self.loop = Loop()
        self.loop.run(self._start(bootstrap))

    async def _start(self, bootstrap):
        from aiokafka import AIOKafkaProducer

        self.producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=2)
        await self.producer.start()

    async def _send(self, values):
        futures = [await self.producer.send(self.topic, value.encode(), key=value.encode()) for value in values]
        await asyncio.gather(*futures)

    def send(self, values):
        self.loop.run(self._send(values))

    def close(self):
        self.loop.run(self.producer.stop())
        self.loop.close()


class AiokafkaConsumer(Taking):
    def __init__(self, bootstrap, topic, group):
        self.loop = Loop()
        self.loop.run(self._start(bootstrap, topic, group))

    async def _start(self, bootstrap, topic, group):
        from aiokafka import AIOKafkaConsumer

        self.consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
        )
        await self.consumer.start()

    def poll(self):
        records = self.loop.run(self.consumer.getmany(timeout_ms=200))
        return [record.value.decode() for part in records.values() for record in part]

    def commit(self):
        self.loop.run(self.consumer.commit())

    def close(self):
        self.loop.run(self.consumer.stop())
        self.loop.close()


class Tool:
    """A command-line client as a long-running process: lines in, lines out."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **(env or {})},
        )
        self.lines = queue.SimpleQueue()
        self.complaints = []
        self.threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines.put), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.complaints.append), daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _read(stream, take):
        for line in stream:
            take(line.rstrip("\n"))

    def write(self, values):
        self.process.stdin.write("".join(f"{value}\n" for value in values))
        self.process.stdin.flush()

    def read(self, timeout_s=0.2):
        got = []
        with contextlib.suppress(queue.Empty):
            got.append(self.lines.get(timeout=timeout_s))
            while True:
                got.append(self.lines.get_nowait())
        return got

    def end_of_input(self):
        """Lets it finish what it was given; returns its exit code."""
        self.process.stdin.close()
        return self._wait()

    def terminate(self):
        """SIGTERM; a consumer commits and leaves its group on it."""
        self.process.terminate()
        return self._wait()

    def _wait(self):
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            for thread in self.threads:
                thread.join()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def said(self):
        return "\n".join(self.complaints[-20:])


class ToolProducer:
    """Gives lines to a tool; what it was given is acknowledged when the values are readable, which ``send``
    waits for.
    """

    def __init__(self, command, bootstrap, topic, env=None, line=str):
        self.tool = Tool(command, env)
        self.line = line
        self.witness = ConfluentConsumer(bootstrap, topic, f"witness-{id(self)}")

    def send(self, values):
        self.tool.write(map(self.line, values))
        try:
            self.witness.take(values, SEND_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; the tool said: {self.tool.said()}") from None

    def close(self):
        self.witness.close()
        code = self.tool.end_of_input()
        assert code == 0, self.tool.said()


class ToolConsumer(Taking):
    """Takes lines from a tool that commits by itself every so often, and when it is told to end."""

    def __init__(self, command, env=None):
        self.tool = Tool(command, env)

    def poll(self):
        return self.tool.read()

    def commit(self):
        """Happens at close."""

    def close(self):
        self.tool.terminate()


def kcat_producer(bootstrap, topic):
    """With -E, without which kcat ends when no broker can be reached."""
    from bench.peers.kcat import kcat

    path, env = kcat()
    options = ["-E", "-K", ":", "-X", "enable.idempotence=true", "-X", "linger.ms=2", "-q"]

    def line(value):
        """It reads its input in blocks of 1024 bytes, so a line that must go at once is that long."""
        return f"{'k' * (1022 - len(value))}:{value}"

    return ToolProducer([path, "-P", "-b", bootstrap, "-t", topic, *options], bootstrap, topic, env, line)


def kcat_consumer(bootstrap, topic, group):
    from bench.peers.kcat import kcat

    path, env = kcat()
    options = ["-X", "auto.offset.reset=earliest", "-X", f"session.timeout.ms={SESSION_MS}", "-q", "-u", "-E"]
    return ToolConsumer([path, "-b", bootstrap, *options, "-G", group, topic], env)


def console_producer(bootstrap, topic):
    from bench.peers.kafka import CONSOLE_PRODUCER, java_command

    command = java_command(CONSOLE_PRODUCER, ["--bootstrap-server", bootstrap, "--topic", topic], level="warn")
    return ToolProducer(command, bootstrap, topic)


def console_consumer(bootstrap, topic, group):
    from bench.peers.kafka import CONSOLE_CONSUMER, java_command

    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", group, "--from-beginning"]
    arguments += ["--command-property", f"session.timeout.ms={SESSION_MS}"]
    return ToolConsumer(java_command(CONSOLE_CONSUMER, arguments, level="warn"))


CLIENTS = {
    "confluent-kafka": (ConfluentProducer, ConfluentConsumer),
    "kafka-python": (KafkaPythonProducer, KafkaPythonConsumer),
    "aiokafka": (AiokafkaProducer, AiokafkaConsumer),
    "kcat": (kcat_producer, kcat_consumer),
    "console-tools": (console_producer, console_consumer),
}

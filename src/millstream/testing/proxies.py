"""Ways between the brokers of a test cluster that can be cut without root: a proxy before each broker's peer listener.

::

    broker 1 ──► proxy at the peer.listen of 2 ──► internal.peer.bind of broker 2     cut(1, 2): the proxy holds what 1
             ◄──                               ◄──                                    sends to 2 until `heal`

The first frame of a connection says which broker dials. What is held is not lost: after the heal it continues, as TCP
sends again what a broken switch has dropped, and a connection that its dialler has given up is closed.
Clients do not pass here and reach every broker. `namespaces` does the same for root, without a process in the way.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from millstream.errors import Corruption
from millstream.model.replication import node_of
from millstream.peers.frames import HEADER_BYTES, FrameKind, check_head, decode_header
from millstream.peers.hello import decode_hello, decode_probe

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from typing import Any

CHUNK_BYTES = 1 << 16


class Proxies:
    """The proxies of one cluster, in a thread of their own.

    Lifecycle: made before the brokers, ``close`` after them.
    """

    def __init__(self) -> None:
        self._cut: set[tuple[int, int]] = set()
        self._healed = asyncio.Event()
        """Set, and replaced by another one, when nothing is cut."""
        self.passed_bytes = 0
        """Everything that went over all connections so far. The proxies' thread writes it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def stand_before(self, node: int, listen: int, bind: int) -> None:
        """Take the connections to a broker at port ``listen``; the broker itself listens at ``bind``."""
        self._do(self._listen(node, listen, bind))

    def cut(self, sender: int, receiver: int) -> None:
        """Hold what ``sender`` sends to ``receiver``."""
        self._do(self._change({(sender, receiver)}))

    def heal(self) -> None:
        """Let everything through again."""
        self._do(self._change(()))

    def close(self) -> None:
        """End every connection and the thread."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # In the thread

    async def _change(self, more: Iterable[tuple[int, int]]) -> None:
        cut = set(more)
        if cut:
            self._cut |= cut
            return
        self._cut.clear()
        self._healed.set()
        self._healed = asyncio.Event()

    async def _listen(self, node: int, listen: int, bind: int) -> None:
        async def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connection(node, bind, reader, writer)

        self._servers.append(await asyncio.start_server(arrived, "127.0.0.1", listen))

    async def _connection(
        self, node: int, bind: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection to ``node``, from its first frame to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        try:
            dialler, first = await _first_frame(reader)
            await self._passable(dialler, node)
            if reader.at_eof():
                return
            answers, onward = await asyncio.open_connection("127.0.0.1", bind)
            ends.append(onward)
            onward.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            onward.write(first)
            ways = {
                asyncio.ensure_future(self._pump(dialler, node, reader, onward)),
                asyncio.ensure_future(self._pump(node, dialler, answers, writer)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, EOFError, Corruption, asyncio.CancelledError):
            pass  # the connection ends, as it does when a broker ends it or the cluster is closed
        finally:
            for end in ends:
                end.transport.abort()
            self._tasks.discard(task)

    async def _pump(
        self, sender: int, receiver: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass on what comes, but nothing over a way that is cut, not even that the stream has ended."""
        with suppress(OSError):
            while True:
                data = await reader.read(CHUNK_BYTES)
                await self._passable(sender, receiver)
                if not data:
                    return
                self.passed_bytes += len(data)
                writer.write(data)
                await writer.drain()

    async def _passable(self, sender: int, receiver: int) -> None:
        while (sender, receiver) in self._cut:
            await self._healed.wait()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _first_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Node id of the broker that dials, and the frame that names it."""
    data = await reader.readexactly(HEADER_BYTES)
    header = decode_header(data)
    data += await reader.readexactly(header.head_bytes)
    head = check_head(header, data)
    if header.kind is FrameKind.HELLO:
        return int(node_of(decode_hello(head).replica)), data
    if header.kind is FrameKind.PROBE:
        return decode_probe(head).founder.node, data
    raise Corruption(f"a connection begins with a frame of kind {header.kind.name}")

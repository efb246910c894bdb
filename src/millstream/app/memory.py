"""Where the shards' memory is: on the node of each shard's core, and locked if that is set.

Both are done before the fork, while no page of it is used. A binding that the kernel refuses costs speed and is logged;
a lock that it refuses stops the start, because the operator asked for memory that is never swapped out.
"""

from collections.abc import Sequence

from millstream.config.forms import human_size
from millstream.config.machine import nodes_of_cores
from millstream.config.settings import Settings
from millstream.errors import Unavailable
from millstream.iobuf import Arena
from millstream.model.quantities import MemoryNode, ShardId
from millstream.shard.process import core_of
from millstream.telemetry.log import log


def place_memory(arenas: Sequence[Arena], settings: Settings) -> None:
    """Bind and lock the arenas as the machine and the settings ask for.

    Raises:
        Unavailable: ``memory.lock`` is set, and the kernel refuses it.
    """
    nodes = nodes_of_cores() if settings.shard_pinning else {}
    for shard, arena in enumerate(arenas):
        node = nodes.get(core_of(ShardId(shard)))
        if node is not None:
            try:
                arena.bind(MemoryNode(node))
            except OSError as error:
                log.warning("memory of shard %d is not bound to node %d: %s", shard, node, error.strerror)
    if settings.memory_lock:
        for arena in arenas:
            try:
                arena.lock()
            except OSError as error:
                raise Unavailable(
                    f"memory.lock=true, and the kernel does not lock {human_size(settings.memory_bytes)} "
                    f"({error.strerror}): raise 'ulimit -l' or LimitMEMLOCK, give less memory, or set memory.lock=false"
                ) from None

"""A shard hook (``internal.shard.hook``) that counts what only the cycle collector would free, when it is asked to.

The collector is off from the start. Once there is a file ``count`` in the directory that ``MILLSTREAM_CYCLES`` names,
each shard writes ``<pid>.json`` beside it: how many unreachable objects there are of each kind. Not counted is what a
deleted partition leaves: it is made once and goes once, not with every request.
"""

import collections
import gc
import json
import os
import threading
import time
from pathlib import Path

from millstream.partition.partition import Partition
from millstream.storage.log.log import Log


def count_cycles(node):
    _ = node
    gc.disable()
    threading.Thread(target=_wait, args=(Path(os.environ["MILLSTREAM_CYCLES"]),), daemon=True).start()


def _wait(directory):
    gc.collect()
    gc.freeze()
    while not (directory / "count").exists():
        time.sleep(0.05)
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    garbage = {id(one): one for one in gc.garbage}
    waiting = [one for one in gc.garbage if isinstance(one, Partition | Log)]
    while waiting:
        one = waiting.pop()
        if garbage.pop(id(one), None) is not None:
            waiting += gc.get_referents(one)
    kinds = collections.Counter(_kind(one) for one in garbage.values())
    aside = directory / f"{os.getpid()}.aside"
    aside.write_text(json.dumps(kinds))
    aside.rename(aside.with_suffix(".json"))


def _kind(one):
    if callable(one):
        return getattr(one, "__qualname__", repr(one))
    return f"{type(one).__module__}.{type(one).__qualname__}"

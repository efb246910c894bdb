"""A network of its own for each broker of a test cluster, so that the way between any two can be cut.

::

    host ── bridge ──┬── namespace of broker 1: 10.x.y.1
      (10.x.y.254)   ├── namespace of broker 2: 10.x.y.2      cut(1, 2): 1 sends nothing more to 2
                     └── …

Clients on the host reach every broker in any case: only what one broker sends to another is dropped, without a
word to either, as by a broken switch. Connections that are open stay open and get no answers. Needs root and iproute2.
"""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

HOST = 254
_OURS = re.compile(r"(?P<bridge>ms(?P<pid>[0-9a-f]+)[0-9a-f]{3})-\d+")


class Namespaces:
    """The network of one cluster.

    Lifecycle: made before the brokers, ``close`` after them.
    """

    def __init__(self, nodes: Iterable[int]) -> None:
        """Raises RuntimeError if this process may not make networks."""
        if not may_make():
            raise RuntimeError("networks of brokers need root and the command ip of iproute2")
        remove_left_behind()
        self._nodes = list(nodes)
        chance = random.SystemRandom()  # another process may draw with the same seed, as pytest-randomly lets each test
        self._name = f"ms{os.getpid():x}{chance.randrange(4096):03x}"
        self._subnet = f"10.{chance.randrange(64, 224)}.{chance.randrange(256)}"
        self._cut: set[tuple[int, int]] = set()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        bridge = self._name
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self._subnet}.{HOST}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for node in self._nodes:
            self._connect(node)

    def add(self, node: int) -> None:
        """Make the network of one more broker."""
        self._nodes.append(node)
        self._connect(node)

    def _connect(self, node: int) -> None:
        space, outer = self.name(node), f"{self._name}v{node}"
        _ip("netns", "add", space)
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outer, "master", self._name, "up")
        _ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")

    def address(self, node: int) -> str:
        """The IP address of a broker."""
        return f"{self._subnet}.{node}"

    def name(self, node: int) -> str:
        """The name of a broker's network, as ``ip netns`` has it."""
        return f"{self._name}-{node}"

    def cut(self, sender: int, receiver: int) -> None:
        """Drop what ``sender`` sends to ``receiver``."""
        if (sender, receiver) not in self._cut:
            _ip("-n", self.name(sender), "route", "add", "blackhole", f"{self.address(receiver)}/32")
            self._cut.add((sender, receiver))

    def heal(self) -> None:
        """Let everything through again."""
        for sender, receiver in self._cut:
            _ip("-n", self.name(sender), "route", "del", "blackhole", f"{self.address(receiver)}/32")
        self._cut.clear()

    def close(self) -> None:
        """Remove everything."""
        for node in self._nodes:
            _run("netns", "del", self.name(node))
        _run("link", "del", self._name)


def may_make() -> bool:
    """Whether this process is root and has iproute2."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


def remove_left_behind() -> None:
    """Remove the networks of processes that ended without closing them."""
    for line in _run("netns", "list").stdout.splitlines():
        if (found := _OURS.match(line)) and not Path("/proc", str(int(found["pid"], 16))).exists():
            _run("netns", "del", found[0])
            _run("link", "del", found["bridge"])


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["ip", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _ip(*words: str) -> None:
    done = _run(*words)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")

"""An ext4 file system of its own for each broker of a cluster, in a loop image: it fills up, and its power fails.

Needs root and mkfs.ext4; `CAN_MOUNT` says whether they are there.
"""

import errno
import os
import shutil
import subprocess
from contextlib import contextmanager, suppress

from waits import Patience

CAN_MOUNT = os.geteuid() == 0 and shutil.which("mkfs.ext4") is not None
MIB = 1 << 20


class Disk:
    """An ext4 file system in an image, at a directory."""

    def __init__(self, image, at):
        self.image, self.at = image, at
        with image.open("wb") as made:
            made.truncate(1 << 30)
        run("mkfs.ext4", "-q", image)
        at.mkdir()
        self.mounted = False
        self.mount()

    def mount(self):
        run("mount", "-o", "loop", self.image, self.at)
        self.mounted = True

    def unmount(self):
        """Once the last process of the broker has ended: its lock, which tells that, can't be read any more."""
        patience = Patience()
        while self.mounted:
            done = call("umount", self.at)
            self.mounted = done.returncode != 0
            patience.check(done.stderr)

    def write_unsynced(self, name):
        """In a new file: ext4 itself syncs one that was cut to nothing and written again."""
        (self.at / name).write_bytes(bytes(4096))

    def has(self, name):
        path = self.at / name
        return path.exists() and path.stat().st_size > 0

    def fill(self):
        """Leave no block free. Nothing is written: the image does not grow."""
        with (self.at / "ballast").open("wb") as ballast:
            for piece in (64 * MIB, MIB, 4096):
                while _extend(ballast.fileno(), piece):
                    pass

    def empty(self):
        """Give back what `fill` took."""
        (self.at / "ballast").unlink(missing_ok=True)


def _extend(fd, length):
    """Whether there was room for so much more."""
    try:
        os.posix_fallocate(fd, os.fstat(fd).st_size, length)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


@contextmanager
def loop_disks(directory, nodes):
    """A disk for each broker, by node id, where a cluster with its data in ``directory / "data"`` looks for it."""
    data = directory / "data"
    data.mkdir()
    made = {}
    try:
        for node in nodes:
            made[node] = Disk(directory / f"{node}.img", data / str(node))
        yield made
    finally:
        for disk in made.values():
            disk.unmount()
            with suppress(FileNotFoundError):
                disk.image.unlink()


def call(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


def run(*words):
    done = call(*words)
    assert done.returncode == 0, f"{words}: {done.stderr}"

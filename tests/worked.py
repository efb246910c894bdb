"""How much a broker works between two moments: a measure of what others made a request wait for that is the same on a
quiet and on a busy machine.
"""

import os

from bench import processes


class Worked:
    """CPU time of the main threads of a broker's processes, each by itself."""

    def __init__(self, pid):
        self._files = [os.open(f"/proc/{each}/schedstat", os.O_RDONLY | os.O_CLOEXEC) for each in processes.tree(pid)]

    def each_ns(self):
        return [int(os.pread(file, 64, 0).split()[0]) for file in self._files]

    def most_s(self, before):
        """Seconds that the busiest process has worked since ``before``, an earlier ``each_ns()``."""
        return max(now - then for now, then in zip(self.each_ns(), before, strict=True)) / 1e9

    def close(self):
        for file in self._files:
            os.close(file)

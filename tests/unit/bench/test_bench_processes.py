"""CPU of a process tree is counted to the end of each process, whoever reaps it."""

import os
import subprocess
import sys

from bench import processes

FORGETFUL = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel adds nothing to the parent's times
if not os.fork():
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass
    os._exit(0)
try:
    os.wait()
except ChildProcessError:
    print("gone", flush=True)
sys.stdin.read()
"""


def test_cpu_of_a_process_that_nobody_reaps_is_not_forgotten():
    with processes.Watched(os.getpid()) as watched:
        before, told = watched.seconds(), processes.cpu_seconds(os.getpid())
        command = [sys.executable, "-c", FORGETFUL]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdout.readline() == b"gone\n"
            during = watched.seconds()
            parent.stdin.close()
        assert during - before > 0.2, "but for the last look's tenth of a second it is all there"
        assert processes.cpu_seconds(os.getpid()) - told < during - before, "the parent's own times lack it"
        assert watched.seconds() >= during, "what has ended stays counted"

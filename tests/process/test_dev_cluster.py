"""``millstream dev cluster`` as a person runs it: one command, a broker dies, is started again, Ctrl-C ends it all."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from waits import PATIENCE_S, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci]

COMMAND = [sys.executable, "-m", "millstream.cli"]


def run(*words, code=0):
    done = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def written(directory):
    return json.loads((directory / "cluster.json").read_text())


def alive(pid):
    """Whether the process runs; one that nobody has waited for does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def end(process, signum):
    process.send_signal(signum)
    with process.stdout, process.stderr:
        assert process.wait(60) == 0


def start(directory, *words):
    process = subprocess.Popen(
        [*COMMAND, "dev", "cluster", "-n", "3", "--data", str(directory), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    line = process.stdout.readline()
    about = written(directory)
    assert line == f"millstream cluster of 3 ready: bootstrap {about['bootstrap']}\n"
    return process, about


def test_a_cluster_by_one_command_survives_a_broker_and_goes_on_later(tmp_path):
    directory = tmp_path / "dev"
    process, about = start(directory)
    try:
        assert [broker["id"] for broker in about["brokers"]] == [1, 2, 3]
        at = ("--bootstrap", about["bootstrap"])
        run("topic", "create", "orders", "--replication", 3, *at)
        gone = about["brokers"][1]
        os.kill(gone["pid"], signal.SIGKILL)
        assert process.stderr.readline().startswith("broker 2 has ended (killed by SIGKILL); 'millstream dev restart 2")
        assert process.poll() is None
        run("dev", "restart", 2, "--data", directory)
        again = written(directory)["brokers"][1]
        assert again["pid"] != gone["pid"]
        assert again | {"pid": 0} == gone | {"pid": 0}, "the addresses stay"
        health = [*COMMAND, "cluster", "health", "--json", *at]
        until(
            lambda: json.loads(subprocess.run(health, capture_output=True, text=True, check=False).stdout)["healthy"],
            "the cluster does not become healthy",
        )
        described = json.loads(run("topic", "describe", "orders", "--json", *at))["partitions"][0]
        assert sorted(described["in_sync"]) == [1, 2, 3]
        assert described["leader"] in (1, 2, 3)
        assert described["leader_epoch"] >= 0
        run("dev", "cluster", "-n", 3, "--data", directory, code=1)
        assert all(alive(broker["pid"]) for broker in written(directory)["brokers"]), "a refusal stops nobody"
    finally:
        end(process, signal.SIGINT)
    assert not any(alive(broker["pid"]) for broker in written(directory)["brokers"])
    process, about = start(directory, "--keep")
    try:
        assert "orders" in run("topic", "list", "--bootstrap", about["bootstrap"])
    finally:
        end(process, signal.SIGTERM)


def test_ports_are_kept_out_of_the_kernel_s_range_and_a_taken_one_is_replaced_with_a_word(tmp_path):
    directory = tmp_path / "dev"
    process, about = start(directory)
    try:
        first, last = map(int, pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        plan = json.loads((directory / "dev.json").read_text())
        ports = [int(plan[kind][node].rpartition(":")[2]) for kind in ("listen", "peer", "http") for node in "123"]
        assert len(set(ports)) == 9
        assert not [port for port in ports if first <= port <= last]
        gone = about["brokers"][2]
        os.kill(gone["pid"], signal.SIGKILL)
        assert process.stderr.readline().startswith("broker 3 has ended")
        host, _, port = gone["bootstrap"].rpartition(":")
        with socket.create_server((host, int(port))):
            done = subprocess.run(
                [*COMMAND, "dev", "restart", "3", "--data", str(directory)],
                capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
        again = written(directory)["brokers"][2]
        assert again["bootstrap"] != gone["bootstrap"]
        moved = again["bootstrap"].rpartition(":")[2]
        assert (
            f"broker 3: another process listens on {gone['bootstrap']}; its port for clients is {moved}" in done.stderr
        )
        assert json.loads((directory / "dev.json").read_text())["listen"]["3"] == again["bootstrap"], "remembered"
        run("topic", "list", "--bootstrap", again["bootstrap"])
    finally:
        end(process, signal.SIGINT)

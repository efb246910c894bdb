"""``millstream start``: settings from flags and file, then the broker.

Parsed with argparse and nothing heavier, since this command's first duty is to be up. A wrong setting is named before
anything is opened or written.
"""

from __future__ import annotations

import argparse
import gc
import os
from typing import NoReturn

from millstream.cli.failure import WrongUsage
from millstream.config.errors import ConfigError
from millstream.config.exposure import check_exposure
from millstream.config.forms import human_size
from millstream.config.load import load_settings, settings_of
from millstream.config.machine import usable_memory_bytes
from millstream.telemetry.log import log


class _Parser(argparse.ArgumentParser):
    """Complains in one sentence like every other command."""

    def error(self, message: str) -> NoReturn:
        raise WrongUsage(f"{message}; 'millstream start --help' shows what it takes")


def start_parser() -> argparse.ArgumentParser:
    """The declaration of the command; its help is also the reference page's text."""
    parser = _Parser(
        prog="millstream start",
        description="Start a broker and serve until SIGTERM or Ctrl-C. Prints one line when it is ready and writes "
        "broker.json into the data directory.",
        epilog="Every setting is shown by 'millstream config list'; flags win over --set, which wins over "
        "variables such as MILLSTREAM_MESSAGE_MAX_BYTES, which win over the file.",
        allow_abbrev=False,
    )
    parser.add_argument("--data", metavar="DIR", help="directory of everything that is kept (created if missing)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        action="append",
        help="where clients connect; port 0 picks one (default 127.0.0.1:9092); may be repeated with names, "
        "such as PLAINTEXT://127.0.0.1:9092 and LAN://0.0.0.0:9093",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="where a page for people, /metrics and /healthz are served; port 0 picks one (default: port 9644)",
    )
    parser.add_argument("--shards", metavar="N", help="processes that serve partitions (default: one per core)")
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory budget, such as 512MiB (default: a quarter of RAM, at most 2 GiB)"
    )
    parser.add_argument("--node-id", metavar="N", help="id of this broker in its cluster (default 0)")
    parser.add_argument(
        "--seeds",
        metavar="HOST:PORT,…",
        help="peer addresses of the brokers that form the cluster, the same list for each (default: a single broker)",
    )
    parser.add_argument("--peer-listen", metavar="HOST:PORT", help="where the other brokers reach this one")
    parser.add_argument(
        "--replace",
        action="store_const",
        const="true",
        help="the data directory that this broker had in its cluster is permanently lost: start with an empty one",
    )
    parser.add_argument("--rack", metavar="NAME", help="rack of this broker; replicas are spread over racks")
    parser.add_argument("--config", metavar="FILE", help="properties file with one name=value a line")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="one setting; may be repeated")
    return parser


def start(arguments: list[str]) -> int:
    """Run the broker until it ends; returns its exit code."""
    given = start_parser().parse_args(arguments)
    listen = None if given.listen is None else ",".join(given.listen)
    flags = {
        "data_dir": given.data,
        "listen": listen,
        "http_listen": given.http,
        "shards": given.shards,
        "memory_bytes": given.memory,
        "node_id": given.node_id,
        "seeds": given.seeds,
        "peer_listen": given.peer_listen,
        "rack": given.rack,
        "replace_broker": given.replace,
    }
    settings = load_settings(given.config, given.set, flags, os.environ)
    check_exposure(settings)
    from_environment = settings_of(os.environ)
    if from_environment:
        log.info("from the environment: %s", ", ".join(from_environment.values()))
    usable = usable_memory_bytes()
    if settings.memory_bytes > usable:
        raise ConfigError(
            "memory.bytes",
            f"{human_size(settings.memory_bytes)} is more than the {human_size(usable)} that this machine or its "
            "control group has; give less with --memory, or leave it out for a quarter of RAM",
        )
    gc.disable()  # until `collector.freeze_for_fork`: what is imported stays, and looking through it takes time
    from millstream.app.broker import run

    return run(settings)

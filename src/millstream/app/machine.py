"""The machine as the HTTP port shows it: what is known of it, and what ``millstream tune`` says of its settings."""

import os
import platform
import ssl
from typing import Any

from millstream.config.settings import Settings
from millstream.tune.checks import look
from millstream.tune.facts import Broker, Facts
from millstream.tune.finding import described


def machine(settings: Settings) -> dict[str, Any]:
    """Facts by their titles, and the findings of all checks. Reads some hundred files of the kernel."""
    system = os.uname()
    facts = {
        "Kernel": f"{system.sysname} {system.release}",
        "Cores": f"{len(os.sched_getaffinity(0))} for {settings.shards} shards",
        "Memory of shards": f"{settings.memory_bytes >> 20} MiB",
        "Data": os.path.abspath(settings.data_dir),
        "Python": platform.python_version(),
        "OpenSSL": ssl.OPENSSL_VERSION.removeprefix("OpenSSL ").partition(" ")[0],
    }
    found = look(Facts(os.sep, Broker.here(settings)))
    return {"facts": facts, "findings": [described(one) for one in found]}

"""What an image is made of, as CycloneDX 1.5: its Debian packages, its interpreter, and its Python packages.

    python sbom.py [ROOT] > sbom.cdx.json

Run as the last step of the Containerfile, by the environment that the image runs: it reads what is installed and asks
nobody, so that the list is of this image and not of a file that should have been installed. ``ROOT`` is where the
image's files are (``/``). The same packages give the same bytes.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import uuid
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from typing import Any
from urllib.parse import quote


def debian_packages(root: str) -> Iterator[dict[str, Any]]:
    """The packages that dpkg has installed."""
    try:
        with open(os.path.join(root, "var/lib/dpkg/status"), encoding="utf-8") as file:
            paragraphs = file.read().split("\n\n")
    except FileNotFoundError:
        return
    release = _fields(os.path.join(root, "etc/os-release"), "=")
    distro, version = (release.get(name, "").strip('"') for name in ("ID", "VERSION_ID"))
    for paragraph in paragraphs:
        found = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if not found.get("Status", "").endswith(" installed"):
            continue
        source = found.get("Source", found["Package"]).partition(" ")[0]
        qualifiers = {"arch": found["Architecture"], "distro": f"{distro}-{version}", "upstream": source}
        yield _component(
            "deb",
            f"{distro or 'debian'}/{found['Package']}",
            found["Package"],
            found["Version"],
            {name: text for name, text in qualifiers.items() if name != "upstream" or text != found["Package"]},
        )


def python_packages(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The distributions on ``paths``, and the interpreter."""
    version = platform.python_version()
    yield _component("generic", "python", "python", version, {})
    seen: set[tuple[str, str]] = set()
    for each in distributions(path=list(paths)):
        name = each.metadata["Name"].lower().replace("_", "-").replace(".", "-")
        if (name, each.version) not in seen:
            seen.add((name, each.version))
            yield {**_component("pypi", name, each.metadata["Name"], each.version, {}), **_licence(each)}


def document(components: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The bill. Its serial number is made of its content."""
    ordered = sorted(components, key=lambda one: one["purl"])
    millstream = next((one["version"] for one in ordered if one["purl"].startswith("pkg:pypi/millstream@")), "")
    content = json.dumps(ordered, sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "millstream", "version": millstream}},
        "components": ordered,
    }


def _licence(distribution: Distribution) -> dict[str, Any]:
    found = distribution.metadata.get_all("License-Expression")
    return {"licenses": [{"expression": found[0]}]} if found else {}


def _component(kind: str, path: str, name: str, version: str, qualifiers: dict[str, str]) -> dict[str, Any]:
    address = f"pkg:{kind}/{quote(path, safe='/')}@{quote(version, safe='')}"
    if qualifiers:
        address += "?" + "&".join(f"{key}={quote(text, safe='')}" for key, text in sorted(qualifiers.items()))
    what = "application" if kind == "generic" else "library"
    return {"type": what, "bom-ref": address, "name": name, "version": version, "purl": address}


def _fields(path: str, separator: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(line.rstrip("\n").split(separator, 1) for line in file if separator in line)
    except FileNotFoundError:
        return {}


def main() -> None:
    """Print the bill of this machine."""
    root = sys.argv[1] if len(sys.argv) > 1 else "/"
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreters = os.path.join(sys.base_prefix, "lib", own, "site-packages")  # pip's, outside of the environment
    found = [*debian_packages(root), *python_packages([*sys.path, interpreters])]
    json.dump(document(found), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

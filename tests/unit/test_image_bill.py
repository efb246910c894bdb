"""The bill of an image: every package that is installed is in it, with an address that a scanner understands."""

import json
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "container" / "sbom.py"

STATUS = """\
Package: libssl3t64
Status: install ok installed
Architecture: amd64
Source: openssl (3.5.1-1)
Version: 3.5.1-1+deb13u1
Description: Secure Sockets Layer
 toolkit: a line that looks like a field

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1

Package: libstdc++6
Status: install ok installed
Architecture: amd64
Version: 1:14.2.0-19
"""


def bill(*arguments):
    made = subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, check=True)
    return made.stdout


@pytest.fixture
def root(tmp_path):
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="13"\n')
    return tmp_path


def test_debian_packages_have_the_addresses_of_their_release(root):
    found = {one["purl"] for one in json.loads(bill(root))["components"] if one["purl"].startswith("pkg:deb/")}
    assert found == {
        "pkg:deb/debian/libssl3t64@3.5.1-1%2Bdeb13u1?arch=amd64&distro=debian-13&upstream=openssl",
        "pkg:deb/debian/libstdc%2B%2B6@1%3A14.2.0-19?arch=amd64&distro=debian-13",
    }


def test_every_python_package_is_there_and_millstream_is_what_the_image_is(root):
    made = json.loads(bill(root))
    found = {(one["name"], one["version"]) for one in made["components"]}
    assert {(one.metadata["Name"], one.version) for one in distributions()} <= found
    assert ("python", ".".join(map(str, sys.version_info[:3]))) in found
    assert made["metadata"]["component"]["version"] == next(
        one.version for one in distributions() if one.metadata["Name"] == "millstream"
    )


def test_it_has_the_form_of_cyclonedx_and_the_same_packages_give_the_same_bytes(root):
    first = bill(root)
    assert bill(root) == first
    made = json.loads(first)
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made["serialNumber"])
    references = [one["bom-ref"] for one in made["components"]]
    assert len(set(references)) == len(references)
    for one in made["components"]:
        assert set(one) - {"licenses"} == {"type", "bom-ref", "name", "version", "purl"}
        assert re.fullmatch(r"pkg:(deb/debian|pypi|generic)/[^\s@]+@[^\s]+", one["purl"])
    (root / "var/lib/dpkg/status").write_text(STATUS.replace("14.2.0-19", "14.2.0-20"))
    assert json.loads(bill(root))["serialNumber"] != made["serialNumber"]


def test_an_image_without_dpkg_has_its_python_packages(tmp_path):
    assert [one for one in json.loads(bill(tmp_path))["components"] if one["purl"].startswith("pkg:pypi/")]


def test_the_image_makes_it_of_itself():
    recipe = (ROOT / "Containerfile").read_text()
    assert "deploy/container/sbom.py" in recipe
    assert "/opt/millstream/bin/python /opt/millstream/sbom.py > /opt/millstream/sbom.cdx.json" in recipe

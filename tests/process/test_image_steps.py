"""The steps of the Containerfile, run one after the other where no container engine is.

A mount namespace stands for the image: the directories that the steps write are the test's own, and ``/etc`` is
covered by an overlay, so that ``useradd`` changes nothing of the machine. The broker then starts in a network of its
own, as the image's user, by the image's command with keys of ``security init``, and the image's health check asks it.
Then it starts in clear, as the page says. The Python of the test stands for that of the image.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = re.sub(r"\\\n\s*", " ", (ROOT / "Containerfile").read_text())
OWN = ("/source", "/opt", "/data", "/cache", "/keys")
"""Directories that the steps make, and that of the keys."""
PLAIN = ["start", "--config", "/opt/millstream/plain.properties"]
AS_ADMIN = "--bootstrap localhost:9092 --command-config {keys}/users/admin/client.properties"


def may_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "-n", "true"], capture_output=True).returncode == 0


def stages():
    """The steps of each stage, as (verb, words)."""
    found = []
    for line in RECIPE.splitlines():
        verb, _, words = line.partition(" ")
        if verb == "FROM":
            found.append([])
        elif found and re.fullmatch("[A-Z]+", verb):
            found[-1].append((verb, words))
    return found


def script(image):
    """What is run in the namespace: the steps of all stages as shell, and the broker."""
    lines = ["set -e", f"mkdir -p {image}/etc {image}/work {image}/bin", f"ln -s {sys.executable} {image}/bin/python"]
    lines += [f"mkdir -p {image}{one} {one}; mount --bind {image}{one} {one}" for one in OWN]
    lines += [f"mount -t overlay overlay -o lowerdir=/etc,upperdir={image}/etc,workdir={image}/work /etc"]
    lines += [f"export PATH={image}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    entry = command = health = []
    user = ""
    for steps in stages():
        for verb, words in steps:
            parts = shlex.split(words)
            if verb == "ARG":
                default = re.search(rf"^ARG {words.partition('=')[0]}=(\S+)", RECIPE, re.MULTILINE)
                lines.append(f"export {words.partition('=')[0]}={default[1]}")
            elif verb == "COPY" and not words.startswith("--from"):
                *sources, target = parts
                lines.append(f"mkdir -p {target}")
                whole = "-T " if (ROOT / sources[0]).is_dir() else ""
                lines += [f"cp -r {whole}{ROOT / source} {target}" for source in sources]
            elif verb == "RUN":
                lines.append(words)
            elif verb == "ENV":
                lines += [f"export {one}" for one in words.split()]
            elif verb == "USER":
                user = words
            elif verb == "ENTRYPOINT":
                entry = json.loads(words)
            elif verb == "CMD":
                command = json.loads(words)
            elif verb == "HEALTHCHECK":
                health = json.loads(words.partition("CMD ")[2])
            else:
                assert verb in ("COPY", "VOLUME", "EXPOSE"), f"{verb} is a step that the test does not know"
    as_user = f"setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs"
    keys = "/keys/all"  # a path of the image: other runs of pytest close its own directory to the user
    lines += [
        f"millstream security init {keys} --place /keys",
        f"cp {keys}/localhost/* /keys",
        f"chown -R {user} /keys",
    ]

    def runs(words, options):
        """A broker, from its start to its end."""
        return (
            f"{as_user} {shlex.join([*entry, *words])} & broker=$!; "
            f"for try in $(seq 100); do {as_user} {shlex.join(health)} 2>/dev/null && break; sleep 0.2; done; "
            f"{as_user} {shlex.join(health)} && echo healthy; "
            f"{as_user} millstream topic create flights --if-not-exists {options} && "
            f"{as_user} millstream topic list {options}; "
            "kill $broker; wait $broker; echo ended $?; "
        )

    inner = (
        "ip link set lo up; "
        + runs(command, AS_ADMIN.format(keys=keys))
        + runs(PLAIN, "--bootstrap localhost:9092")
        + "stat -c '%a %u' /data; cat /opt/millstream/sbom.cdx.json"
    )
    return "\n".join([*lines, f"unshare -n sh -c {shlex.quote(inner)}"])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not may_mount(), reason="needs root and namespaces of its own")
def test_the_steps_of_the_image_make_a_broker_that_is_healthy(tmp_path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:  # pytest's own: the image's user goes through them
        parent.chmod(0o755)
    made = [one for one in OWN if not Path(one).exists()]
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script(tmp_path / "image")],
            capture_output=True,
            text=True,
            timeout=800,
            cwd="/",
        )
    finally:
        for one in made:
            Path(one).rmdir()  # where the test's directories were mounted
    assert done.returncode == 0, done.stderr[-4000:]
    printed, brace, bill = done.stdout.partition("{")
    said = printed.splitlines()
    assert said.count("healthy") == 2, done.stderr[-4000:]
    assert sum("flights" in line for line in said) == 2, done.stderr[-4000:]
    assert said.count("ended 0") == 2
    assert said[-1] == "700 10001"
    assert not any("millstream" in line for line in Path("/etc/passwd").read_text().splitlines())
    names = {one["name"] for one in json.loads(brace + bill)["components"]}
    assert {"millstream", "flask", "cryptography", "obstore", "python"} <= {name.lower() for name in names}

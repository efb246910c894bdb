"""The container's recipe names files and flags that exist."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import certificates
from millstream.admin.access import Access
from millstream.admin.http import HttpServer
from millstream.admin.routing import Response, Router
from millstream.app.tls import read_credentials
from millstream.cli.key_files import KeyFiles
from millstream.cli.start import start_parser
from millstream.config.exposure import check_exposure, exposed
from millstream.config.listeners import HTTP_LISTENER
from millstream.config.load import load_settings
from millstream.config.properties_file import read_properties_file

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "Containerfile").read_text()


def test_it_copies_what_is_there():
    copied = [
        word for words in re.findall(r"^COPY (?!--from)(.+) \S+$", RECIPE, re.MULTILINE) for word in words.split()
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_its_command_is_one_that_start_takes():
    command = json.loads(re.search(r"^CMD (.+)$", RECIPE, re.MULTILINE)[1])
    assert command[0] == "start"
    given = start_parser().parse_args(command[1:])
    (copied,) = re.findall(r"^COPY (\S+broker\.properties.*) /opt/millstream/$", RECIPE, re.MULTILINE)
    (source,) = [one for one in copied.split() if given.config == f"/opt/millstream/{Path(one).name}"]
    settings = load_settings(str(ROOT / source))
    check_exposure(settings)
    changed = load_settings(str(ROOT / source), variables={"MILLSTREAM_ADVERTISED_LISTENERS": "SSL://broker-1:9092"})
    assert changed.advertised_listeners[0].host == "broker-1", "a variable wins over the image's file"
    assert settings.listen[0].port == 9092
    assert settings.http_listen.port == 9644
    assert f"VOLUME {settings.data_dir}\n" in RECIPE
    assert "EXPOSE 9092 9644\n" in RECIPE


def test_the_images_own_file_is_secure_and_the_other_says_that_it_is_not():
    folder = ROOT / "deploy" / "container"
    own = load_settings(str(folder / "broker.properties"))
    assert own.insecure_listeners != "allow"
    assert exposed(own) == []
    plain = load_settings(str(folder / "plain.properties"))
    assert (exposed(plain) != [], plain.insecure_listeners) == (True, "allow")
    assert (own.listen[0].port, own.http_listen) == (plain.listen[0].port, plain.http_listen)
    assert own.data_dir == plain.data_dir
    assert "deploy/container/plain.properties" in RECIPE
    for page in (ROOT / "docs" / "install.md", ROOT / "Containerfile"):
        assert "start --config /opt/millstream/plain.properties" in page.read_text()


def test_its_file_is_what_security_init_writes(tmp_path):
    """The keys of one directory serve the image and the broker that is started with that directory's own file."""
    KeyFiles(tmp_path).create("admin")
    made = KeyFiles(tmp_path).add_node("localhost", [], Path("/keys"))
    written = {name: value for _, name, value in read_properties_file(str(made / "broker.properties"))}
    own = {name: value for _, name, value in read_properties_file(str(ROOT / "deploy/container/broker.properties"))}
    assert {name: value for name, value in written.items() if "peer" not in name}.items() <= own.items()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("well", [False, True])
def test_the_health_check_asks_the_port_as_it_is(tmp_path, secure, well):
    command = json.loads(re.search(r"^HEALTHCHECK CMD (.+)$", RECIPE, re.MULTILINE)[1])
    tls = None
    if secure:
        certificates.write(tmp_path, "broker", hosts=["broker-1"])
        keystore = f"ssl.keystore.location={tmp_path / 'broker.pem'}"
        settings = load_settings(None, ["http.security.protocol=SSL", keystore])
        tls = read_credentials(settings)[HTTP_LISTENER].server()
    router = Router(lambda: None)
    router.add("GET", "/healthz", lambda _: Response(b"", 200 if well else 503), needs=None)
    served = HttpServer(socket.create_server(("127.0.0.1", 0)), router, Access([]), tls)
    served.start()
    (tmp_path / "broker.json").write_text(json.dumps({"http": served.url}))
    environment = {**os.environ, "MILLSTREAM_DATA_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, *command[1:]], env=environment, check=False, capture_output=True)
    served.stop()
    assert (done.returncode == 0) == well, done.stderr


def test_volumes_begin_as_directories_of_the_user_alone():
    """A named volume takes owner and mode of what the image has in its place; a missing directory would be root's."""
    made = re.search(r"install -d -m 0700 -o millstream -g millstream (.+)$", RECIPE, re.MULTILINE)[1].split()
    compose = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())
    brokers = [one for name, one in compose["services"].items() if name.startswith("broker")]
    mounted = {volume.split(":")[1] for one in brokers for volume in one["volumes"] if not volume.startswith("./")}
    assert mounted
    assert mounted <= set(made)
    assert re.search(r"^USER 10001$", RECIPE, re.MULTILINE)

"""Clients of a schema registry with https and users: commands, schemas of records, and whose login goes where."""

import json

import confluent_kafka as ck
import pytest

import certificates
from millstream.cli.__main__ import main
from millstream.client import schema_registry, security
from millstream.client.schema_registry import RegistryRefused, ask, registry_access
from millstream.client.security import read_security
from millstream.errors import Unavailable
from millstream.spark.registry_values import latest_schema
from millstream.testing.process import Broker

pytestmark = pytest.mark.process
WORDS = {"admin": "admin-word-2207", "schemas": "schemas-word-4411"}
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keys")
    certificates.write(directory, "broker", hosts=certificates.HOSTS)
    return directory


@pytest.fixture(scope="module")
def broker(keys):
    settings = {
        "listener.security.protocol.map": "S:SASL_SSL",
        "ssl.keystore.location": keys / "broker.pem",
        "http.security.protocol": "SSL",
        "super.users": "User:admin",
        "connection.failed.authentication.delay.ms": 10,
    }
    with Broker(None, settings, listen="S://127.0.0.1:0", shards=1) as started:
        at = ["--data", str(started.data_dir)]
        for user, word in WORDS.items():
            (keys / user).write_text(word)
            assert main(["user", "create", user, "--password-file", str(keys / user), *at]) == 0
        assert main(["acl", "create", "User:schemas", "write", "--topic", "orders", *at]) == 0
        yield started


@pytest.fixture(scope="module")
def url(broker, keys):
    """The registry, which has a schema of the topic."""
    found = json.loads((broker.data_dir / "broker.json").read_text())["http"]
    body = {"schema": json.dumps(ORDER)}
    at = registry_access(found, {}, read_security(brokers(keys)), broker.bootstrap)
    ask(at, "POST", "/subjects/orders-value/versions", body)
    return found


@pytest.fixture
def config(keys, tmp_path, monkeypatch):
    """Properties of a command; ``config(user, **more)`` writes their file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def written(user="admin", **more):
        found = brokers(keys, user) | {name.replace("_", "."): value for name, value in more.items()}
        path = tmp_path / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in found.items()))
        return ["--command-config", str(path)]

    return written


def brokers(keys, user="admin"):
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(keys / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": WORDS[user],
    }


def test_commands_log_in_as_at_the_brokers_or_as_the_registrys_own_user(broker, url, config, tmp_path, capfd):
    (tmp_path / "orders.avsc").write_text(json.dumps(ORDER))
    own = {"schema_registry_url": url, "basic_auth_user_info": f"schemas:{WORDS['schemas']}"}
    assert main(["schema", "register", "orders-value", str(tmp_path / "orders.avsc"), *config(**own)]) == 0
    assert main(["schema", "show", "orders-value", "--registry", url, *config()]) == 0
    (tmp_path / "cluster.yaml").write_text("schemas:\n  orders-value: {file: orders.avsc, compatibility: FULL}\n")
    apply = ["apply", "-f", str(tmp_path / "cluster.yaml"), "--bootstrap", broker.bootstrap]
    assert main([*apply, "--registry", url, *config()]) == 0
    capfd.readouterr()
    assert main(["schema", "list", *config(**own)]) == 1, "it may not list all subjects"
    wrong = {**own, "basic_auth_user_info": "schemas:S3CRET"}
    assert main(["schema", "show", "orders-value", *config(**wrong)]) == 1
    said = capfd.readouterr()
    assert "the registry refuses that" in said.err
    assert "S3CRET" not in said.err + said.out
    assert WORDS["schemas"] not in said.err + said.out


def test_records_are_decoded_with_the_registrys_schemas(broker, url, keys, config, capfd):
    found = brokers(keys)
    access = registry_access(url, {}, read_security(found), broker.bootstrap)
    schema_id = ask(access, "GET", "/subjects/orders-value/versions/latest")["id"]
    producer = ck.Producer({**found, "bootstrap.servers": broker.bootstrap})
    producer.produce("orders", b"\0" + schema_id.to_bytes(4, "big") + b"\x0e")
    assert producer.flush(60) == 0
    read = ["consume", "orders", "--decode", "-e", "--bootstrap", broker.bootstrap]
    assert main([*read, "--registry", url, *config()]) == 0
    assert '{"id": 7}' in capfd.readouterr().out


def test_a_registry_on_another_host_than_the_brokers_gets_its_own_login_alone(broker, url, keys, monkeypatch):
    """``localhost`` stands for the other host: names of this machine count as no brokers' here."""
    for module in (security, schema_registry):
        monkeypatch.setattr(module, "is_loopback", lambda host: False)
    foreign = url.replace("127.0.0.1", "localhost")
    found = read_security(brokers(keys))
    for at, login in ((url, True), (foreign, False)):
        access = registry_access(at, {}, found, broker.bootstrap)
        if login:
            assert "orders-value" in ask(access, "GET", "/subjects")
            continue
        with pytest.raises(RegistryRefused) as refused:
            ask(access, "GET", "/subjects")
        assert refused.value.status == 401
    own = {
        "schema.registry.basic.auth.user.info": f"schemas:{WORDS['schemas']}",
        "schema.registry.ssl.truststore.location": str(keys / "ca.pem"),
        "schema.registry.ssl.truststore.type": "PEM",
    }
    assert "Order" in latest_schema(registry_access(foreign, own, found, broker.bootstrap), "orders-value")
    with pytest.raises(Unavailable, match="its certificate is not taken"):
        latest_schema(registry_access(foreign, {"basic.auth.user.info": "a:b"}), "orders-value")

"""The Compose file and the Helm chart: valid by their schemas, and with settings that the broker accepts."""

import json
import re
import shlex
from importlib.resources import files
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from charts import render

from millstream.admin.access import Access
from millstream.app.listening import http_names
from millstream.cli.start import start_parser
from millstream.config.forms import parse_size
from millstream.config.load import load_settings
from millstream.config.settings import NODE_PROPERTIES

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = DEPLOY / "compose"
CHART = DEPLOY / "helm" / "millstream"
KUBERNETES = "1.31"
BUCKET = {"objects": {"url": "s3://bucket/events", "secret": "credentials"}}


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())


def read_settings(arguments):
    given = start_parser().parse_args(arguments)
    flags = {"node_id": given.node_id, "peer_listen": given.peer_listen, "seeds": given.seeds}
    return load_settings(given.config, given.set, flags)


def by_kind(documents):
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def mapped(path, volumes):
    """The file of this directory that a container sees at ``path``."""
    (source,) = [one.split(":")[0] for one in volumes if one.split(":")[1] == path]
    return COMPOSE / source


def test_the_compose_file_is_valid(compose):
    schema = files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
    jsonschema.validate(compose, json.loads(schema))
    named = {one.split(":")[0] for service in compose["services"].values() for one in service["volumes"]}
    assert {one for one in named if not one.startswith("./")} == set(compose["volumes"])


def test_the_brokers_of_the_compose_file_form_one_cluster_with_a_bucket_and_a_warm_cache(compose):
    brokers = {name: one for name, one in compose["services"].items() if name.startswith("broker-")}
    assert len(brokers) == 3
    published = [one for broker in brokers.values() for one in broker["ports"]]
    assert len({one.rsplit(":", 1)[0] for one in published}) == 6
    for number, (name, broker) in enumerate(sorted(brokers.items()), start=1):
        command = shlex.split(broker["command"])
        place = command.index("--config") + 1
        command[place] = str(mapped(command[place], broker["volumes"]))
        found = read_settings(command[1:])
        assert (found.node_id, found.peer_listen.host) == (number, name)
        assert {one.host for one in found.seeds} == set(brokers)
        assert (found.shards, found.shard_pinning) == (2, False), "three brokers share one machine"
        assert found.objects_url.startswith("s3://")
        assert (found.cache_type, found.storage_mode) == ("nvme", "tiered")
        targets = [one.split(":")[1] for one in broker["volumes"]]
        assert all(any(path.startswith(f"{one}") for one in targets) for path in (found.data_dir, found.cache_path))
        outside = next(one for one in found.advertised_listeners if one.name == "LOCAL")
        assert f"127.0.0.1:{outside.port}:{found.listen[0].port}" in broker["ports"]
        assert int(broker["stop_grace_period"].removesuffix("s")) * 1000 > found.shutdown_timeout_ms
        bucket = compose["services"]["bucket"]
        assert broker["environment"]["AWS_SECRET_ACCESS_KEY"] == bucket["environment"]["MINIO_ROOT_PASSWORD"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        BUCKET,
        BUCKET | {"brokers": 5, "cache": {"storageClass": "fast"}, "data": {"storageClass": "ssd"}},
        BUCKET | {"cache": {"type": "none"}, "image": {"tag": "7"}},
    ],
)
def test_the_chart_is_valid_whatever_is_chosen(values):
    documents = render(CHART, values)
    assert sorted(one["kind"] for one in documents) == [
        "ConfigMap",
        "PodDisruptionBudget",
        "Service",
        "Service",
        "StatefulSet",
    ]
    for one in documents:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_the_chart_gives_brokers_settings_that_they_accept(tmp_path):
    found = by_kind(render(CHART, BUCKET))
    config = tmp_path / "broker.properties"
    config.write_text(found["ConfigMap", "demo-millstream"]["data"]["broker.properties"])
    pod = found["StatefulSet", "demo-millstream"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {one["name"]: one.get("value", "") for one in container["env"]}
    seeds = env["SEEDS"].replace("$(NAMESPACE)", "here")
    settings = load_settings(
        str(config),
        [],
        {"node_id": 1, "seeds": seeds, "peer_listen": seeds.split(",")[0]},
    )
    assert len(settings.seeds) == 3
    assert settings.storage_mode == "tiered"
    assert settings.objects_url == "s3://bucket/events"
    mounts = [one["mountPath"] for one in container["volumeMounts"]]
    assert all(any(path.startswith(one) for one in mounts) for path in (settings.data_dir, settings.cache_path))
    assert pod["terminationGracePeriodSeconds"] * 1000 > settings.shutdown_timeout_ms
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"kafka": settings.listen[0].port, "peers": 9192, "http": settings.http_listen.port}
    assert container["envFrom"] == [{"secretRef": {"name": "credentials"}}]


def test_the_chart_starts_on_a_machine_of_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(NODE_PROPERTIES["shards"], "_compute", lambda: 64)
    config = tmp_path / "broker.properties"
    own = "demo-millstream-0.demo-millstream-brokers.here.svc.cluster.local:9192"
    for values in ({}, BUCKET):
        documents = by_kind(render(CHART, values))
        config.write_text(documents["ConfigMap", "demo-millstream"]["data"]["broker.properties"])
        settings = load_settings(str(config), [], {"node_id": 1, "seeds": own, "peer_listen": own})
        (broker,) = documents["StatefulSet", "demo-millstream"]["spec"]["template"]["spec"]["containers"]
        assert settings.shards == int(broker["resources"]["requests"]["cpu"])
        assert not settings.shard_pinning, "pods of one node would share the same cores"


def test_a_larger_cluster_restarts_no_broker():
    three, five = (by_kind(render(CHART, BUCKET | {"brokers": count})) for count in (3, 5))
    named = "StatefulSet", "demo-millstream"
    assert three[named]["spec"]["template"] == five[named]["spec"]["template"]
    assert (three[named]["spec"]["replicas"], five[named]["spec"]["replicas"]) == (3, 5)


def test_the_volume_of_the_cache_is_larger_than_the_cache(tmp_path):
    for storage_class in ("", "fast"):
        found = by_kind(render(CHART, BUCKET | {"cache": {"storageClass": storage_class}}))
        spec = found["StatefulSet", "demo-millstream"]["spec"]
        emptied = [one["emptyDir"]["sizeLimit"] for one in spec["template"]["spec"]["volumes"] if "emptyDir" in one]
        claims = {one["metadata"]["name"]: one["spec"]["resources"]["requests"] for one in spec["volumeClaimTemplates"]}
        size = claims["cache"]["storage"] if storage_class else emptied[0]
        properties = found["ConfigMap", "demo-millstream"]["data"]["broker.properties"]
        cache = re.search(r"cache.max.size.bytes=(\S+)", properties)[1]
        assert parse_size(f"{size}B") >= 1.1 * parse_size(cache)
        assert spec["template"]["spec"]["securityContext"]["fsGroup"] == 10001


def test_the_chart_lets_its_own_names_reach_the_http_port(tmp_path):
    found = by_kind(render(CHART, BUCKET | {"http": {"allowedHosts": ["mill.example.org"]}}))
    config = tmp_path / "broker.properties"
    config.write_text(found["ConfigMap", "demo-millstream"]["data"]["broker.properties"])
    own = "demo-millstream-0.demo-millstream-brokers.here.svc.cluster.local:9192"
    settings = load_settings(str(config), [], {"node_id": 1, "seeds": own, "peer_listen": own})
    access = Access(http_names(settings))
    inside = ("demo-millstream", "demo-millstream.here", "demo-millstream.here.svc.cluster.local:9644")
    pods = ("demo-millstream-0.demo-millstream-brokers", "demo-millstream-0.demo-millstream-brokers.here.svc")
    assert all(map(access.knows, (*inside, *pods, "mill.example.org")))
    assert not access.knows("evil.example")


def test_each_pod_of_the_chart_is_a_broker_with_the_name_that_the_others_ask_for():
    found = by_kind(render(CHART, BUCKET | {"brokers": 3}))
    stateful = found["StatefulSet", "demo-millstream"]["spec"]
    script = stateful["template"]["spec"]["containers"][0]["args"][0]
    seeds = next(
        one["value"] for one in stateful["template"]["spec"]["containers"][0]["env"] if one["name"] == "SEEDS"
    ).split(",")
    service = found["Service", stateful["serviceName"]]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"], "brokers find each other before they are ready"
    name = re.search(r'name="([^"]+)"', script)[1].replace("$NAMESPACE", "$(NAMESPACE)")
    pods = [f"demo-millstream-{number}" for number in range(stateful["replicas"])]
    assert [name.replace("$POD", pod) + ":9192" for pod in pods] == seeds

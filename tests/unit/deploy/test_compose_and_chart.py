"""The Compose file and the Helm chart: valid by their schemas, and with settings that the broker accepts."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from charts import Refused, render

from millstream.admin.access import Access
from millstream.app.listening import http_names
from millstream.app.tls import read_credentials
from millstream.apply.model import load
from millstream.cli import identity
from millstream.cli.application import Noun, application
from millstream.cli.key_files import KeyFiles
from millstream.cli.start import start_parser
from millstream.config.exposure import check_exposure
from millstream.config.forms import parse_size
from millstream.config.load import load_settings
from millstream.config.node_properties import NODE_PROPERTIES
from millstream.config.properties_file import read_properties_file
from millstream.testing import cluster

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = DEPLOY / "compose"
CHART = DEPLOY / "helm" / "millstream"
VERSIONS = ("1.31", "1.33", "1.35")
OPEN = {"insecure": True}
BUCKET = {"objects": {"url": "s3://bucket/events", "secret": "credentials"}, **OPEN}
SECURE = {
    "auth": {"existingSecret": "first-user", "admin": "root"},
    "tls": {"existingSecret": "certificate", "peerSecret": "peers"},
}
EVERYTHING = {
    **BUCKET,
    **SECURE,
    "insecure": False,
    "externalAccess": {"hosts": ["a.example.org", "b.example.org", "c.example.org"], "type": "NodePort"},
    "ingress": {
        "host": "mill.example.org",
        "className": "nginx",
        "tlsSecret": "page",
        "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"},
    },
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "data"}}}]},
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True},
    },
    "backup": {"enabled": True, "destination": "s3://backups/events", "existingSecret": "backup-credentials"},
    "topics": {"orders": {"partitions": 6, "configs": {"retention.ms": "7d"}}, "audit": {}},
    "users": {"alice": {"password_file": "/run/users/alice"}},
    "usersSecret": "passwords",
    "acls": [{"principal": "User:alice", "allow": ["read", "describe"], "topic": "orders"}],
    "quotas": [{"user": "alice", "producer_byte_rate": 1048576}],
    "serviceAccount": {"create": True, "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/mill"}},
    "nodeSelector": {"disk": "nvme"},
    "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}]}]
            }
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "millstream"}},
        }
    ],
    "priorityClassName": "high",
    "podAnnotations": {"team": "data"},
    "extraEnv": [{"name": "MILLSTREAM_TRACEBACK", "value": "1"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
}
OF_AN_OPERATOR = ("ServiceMonitor", "PrometheusRule")
"""Kinds that Kubernetes itself does not have."""


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


@pytest.mark.parametrize("plain", [False, True])
def test_brokers_of_the_compose_file_are_secure_unless_told_otherwise(compose, tmp_path, plain):
    """Each reads the key material that `security init` makes for it, at the place where it is mounted."""
    keys = KeyFiles(tmp_path / "keys")
    keys.create("admin")
    more = yaml.safe_load((COMPOSE / "plain.yaml").read_text())["services"]
    brokers = {name: one for name, one in compose["services"].items() if name.startswith("broker-")}
    assert brokers.keys() == more.keys()
    for name, broker in brokers.items():
        command = shlex.split(broker["command"])
        config = mapped(command[command.index("--config") + 1], broker["volumes"])
        assert mapped("/keys", broker["volumes"]) == COMPOSE / "keys" / name
        made = keys.add_node(name, [], Path("/keys"))
        own = config.read_text().replace("=/keys/", f"={made}/")
        (tmp_path / "broker.properties").write_text(own)
        pairs = [command[at + 1] for at, word in enumerate(command) if word == "--set"]
        flags = {"node_id": name[-1], "peer_listen": command[command.index("--peer-listen") + 1]}
        variables = more[name]["environment"] if plain else {}
        found = load_settings(str(tmp_path / "broker.properties"), pairs, flags, variables)
        check_exposure(found)
        assert sorted(read_credentials(found)) == ([] if plain else ["HTTP", "INSIDE", "LOCAL", "PEER"])
        assert found.insecure_listeners == ("allow" if plain else "refuse")
        assert found.super_users == ("User:admin",)


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
        OPEN,
        BUCKET,
        BUCKET | {"brokers": 5, "cache": {"storageClass": "fast"}, "data": {"storageClass": "ssd"}},
        BUCKET | {"cache": {"type": "none"}, "image": {"tag": "7"}},
        SECURE,
        EVERYTHING,
    ],
)
def test_the_chart_is_valid_whatever_is_chosen(values):
    documents = render(CHART, values)
    kinds = sorted(one["kind"] for one in documents)
    if "metrics" not in values:
        assert kinds == ["ConfigMap", "Job", "PodDisruptionBudget", "Service", "Service", "StatefulSet"]
    else:
        assert kinds.count("Service") == 5
        added = {"ServiceMonitor", "PrometheusRule", "NetworkPolicy", "Ingress", "ServiceAccount"}
        assert added <= set(kinds)
    assert len({(one["kind"], one["metadata"]["name"]) for one in documents}) == len(documents)
    for one in documents:
        for version in () if one["kind"] in OF_AN_OPERATOR else VERSIONS if values is EVERYTHING else VERSIONS[:1]:
            kubernetes_validate.validate(one, version, strict=True)


def test_backups_are_made_drilled_and_watched_only_if_they_are_wanted(tmp_path):
    jobs = {("CronJob", "demo-millstream-backup"), ("CronJob", "demo-millstream-backup-drill")}
    assert not jobs & by_kind(render(CHART, OPEN)).keys()
    found = by_kind(render(CHART, EVERYTHING))
    made, drilled = (
        found[one]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0] for one in sorted(jobs)
    )
    variables = {one["name"]: one["value"] for one in made["env"]}
    assert variables["DESTINATION"] == "s3://backups/events"
    words = made["args"][0].rpartition("exec millstream ")[2].replace("\\\n", " ").split()
    for name, value in variables.items():
        words = [value if one.strip('"') == f"${name}" else one for one in words]
    for given in (words, [str(tmp_path) if one == "/drill" else one for one in drilled["args"]]):
        command = application
        while isinstance(command, Noun):
            command = command.get_command(None, given.pop(0))
        command.make_context(command.name, list(given))
    identity.use(dict)  # the options above are for no later command of this process
    for one in (made, drilled):
        assert one["envFrom"] == [{"secretRef": {"name": "backup-credentials"}}]
    (rule,) = found["PrometheusRule", "demo-millstream-backup"]["spec"]["groups"][0]["rules"]
    assert 'cronjob="demo-millstream-backup"' in rule["expr"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall("^## (.*)$", (DEPLOY.parent / page).read_text(), re.MULTILINE)
    assert anchor in [one.lower().replace(" ", "-") for one in headings]


@pytest.mark.parametrize("prune", [False, True])
def test_what_the_cluster_shall_have_is_applied_by_a_job(tmp_path, prune):
    assert ("Job", "demo-millstream-apply") not in by_kind(render(CHART, OPEN))
    found = by_kind(render(CHART, EVERYTHING | {"prune": prune}))
    wanted = tmp_path / "cluster.yaml"
    (tmp_path / "alice").write_text("her-word")
    text = found["ConfigMap", "demo-millstream-apply"]["data"]["cluster.yaml"]
    wanted.write_text(text.replace("/run/users", str(tmp_path)))
    loaded = load(str(wanted)).wanted
    assert (sorted(loaded.topics), sorted(loaded.users)) == (["audit", "orders"], ["alice"])
    assert (len(loaded.acls), len(loaded.quotas)) == (1, 1)
    pod = found["Job", "demo-millstream-apply"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts["passwords"] == "/run/users"
    assert ("--prune" in container["args"][0]) == prune
    tool = tmp_path / "millstream"
    tool.write_text(f"#!/bin/sh\necho asked\nexit $(cat {tmp_path}/code)\n")
    tool.chmod(0o755)
    (tmp_path / "user").write_text("admin:a\\b:c d\n")
    script = (
        container["args"][0].replace("/etc/millstream-user", str(tmp_path)).replace("/tmp/client", f"{tmp_path}/client")
    )
    for code, sleeps in ((0, 0), (2, 0), (1, 1)):
        (tmp_path / "code").write_text(str(code))
        once = f"sleep() {{ echo slept; echo 0 >{tmp_path}/code; }}\n{script}"
        path = f"{tmp_path}:/usr/bin:/bin"
        done = subprocess.run(
            ["sh", "-c", once], env={"PATH": path, "BOOTSTRAP": "b:1"}, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout.count("slept")) == (2 if code == 2 else 0, sleeps)
    given = {name: value for _, name, value in read_properties_file(str(tmp_path / "client.properties"))}
    assert (given["sasl.username"], given["sasl.password"]) == ("admin", "a\\b:c d")


def test_a_disruption_budget_and_a_token_are_given_only_if_they_are_wanted():
    found = by_kind(render(CHART, OPEN | {"pdb": {"enabled": False}, "serviceAccount": {"token": True}}))
    assert ("PodDisruptionBudget", "demo-millstream") not in found
    pod = found["StatefulSet", "demo-millstream"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"]
    default = by_kind(render(CHART, OPEN))["StatefulSet", "demo-millstream"]["spec"]["template"]["spec"]
    assert not default["automountServiceAccountToken"]
    assert default["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


HELMS = [OPEN, BUCKET, SECURE, EVERYTHING, BUCKET | {"cache": {"storageClass": "fast"}}]
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm (make test-helm has it)")


def helm(tmp_path, values, *words):
    """What Helm prints, and its exit code."""
    given = tmp_path / "values.json"
    given.write_text(json.dumps(values))
    done = subprocess.run(["helm", *words, "--namespace", "here", "--values", given], capture_output=True, text=True)
    return done.stdout, done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.ci
@needs_helm
@pytest.mark.parametrize("values", HELMS)
def test_helm_finds_nothing_to_say_about_the_chart(values, tmp_path):
    _, code, said = helm(tmp_path, values, "lint", "--strict", str(CHART))
    assert (code, "[ERROR]" in said, "[WARNING]" in said) == (0, False, False), said


@pytest.mark.slow
@pytest.mark.ci
@needs_helm
def test_helm_refuses_a_chart_that_lacks_its_secrets(tmp_path):
    _, code, said = helm(tmp_path, {}, "template", "demo", str(CHART))
    assert (code != 0, "insecure=true" in said) == (True, True), said


@pytest.mark.slow
@pytest.mark.ci
@needs_helm
@pytest.mark.parametrize("values", HELMS)
def test_helm_renders_the_same(values, tmp_path):
    out, code, said = helm(tmp_path, values, "template", "demo", str(CHART))
    assert code == 0, said
    real = by_kind(one for one in yaml.safe_load_all(out) if one)
    assert real == by_kind(render(CHART, values))


def secure_settings(tmp_path, values):
    found = by_kind(render(CHART, values))
    config = tmp_path / "broker.properties"
    config.write_text(found["ConfigMap", "demo-millstream"]["data"]["broker.properties"])
    own = "demo-millstream-0.demo-millstream-brokers.here.svc.cluster.local:9192"
    return load_settings(str(config), [], {"node_id": 1, "seeds": own, "peer_listen": own}), found


def test_a_chart_with_secrets_has_no_open_address(tmp_path):
    settings, found = secure_settings(tmp_path, SECURE)
    assert settings.insecure_listeners != "allow"
    check_exposure(settings)
    assert [one.name for one in settings.listen] == ["SASL_SSL"]
    assert settings.super_users == ("User:root",)
    pod = found["StatefulSet", "demo-millstream"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    secrets = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
    assert secrets == {"user": "first-user", "tls": "certificate", "peer": "peers"}
    assert settings.ssl_keystore_location.startswith(mounts["tls"])
    peer = settings.for_listener("peer")
    assert peer.ssl_keystore_location.startswith(mounts["peer"])
    assert peer.ssl_truststore_location.startswith(mounts["peer"])
    user = next(one["value"] for one in container["env"] if one["name"] == "MILLSTREAM_BOOTSTRAP_USER_FILE")
    assert user.startswith(mounts["user"])
    assert {container[probe]["httpGet"]["scheme"] for probe in ("startupProbe", "readinessProbe")} == {"HTTPS"}


@pytest.mark.parametrize("lacking", [("auth", "existingSecret"), ("tls", "existingSecret"), ("tls", "peerSecret")])
def test_a_chart_that_lacks_a_secret_is_refused_unless_it_is_meant_to_be_open(lacking, tmp_path):
    part, name = lacking
    values = SECURE | {part: SECURE[part] | {name: ""}}
    with pytest.raises(Refused, match=f"{part}.{name}"):
        render(CHART, values)
    settings, _ = secure_settings(tmp_path, OPEN | values)
    assert settings.insecure_listeners == "allow"


def test_a_chart_without_values_is_refused():
    with pytest.raises(Refused, match="insecure=true"):
        render(CHART)


def test_brokers_are_reached_from_outside_by_their_own_names(tmp_path):
    settings, found = secure_settings(tmp_path, EVERYTHING)
    assert [(one.name, one.port) for one in settings.listen] == [("SASL_SSL", 9092), ("EXTERNAL", 9094)]
    assert dict(settings.listener_security_protocol_map)["EXTERNAL"] == "SASL_SSL"
    (container,) = found["StatefulSet", "demo-millstream"]["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value", "") for one in container["env"]}
    hosts = tmp_path / "external-hosts"
    hosts.write_text(found["ConfigMap", "demo-millstream"]["data"]["external-hosts"])
    script = (
        container["args"][0]
        .replace("exec millstream start", "echo")
        .replace("/etc/millstream/external-hosts", str(hosts))
    )
    for number, host in enumerate(EVERYTHING["externalAccess"]["hosts"]):
        pod = env | {"POD": f"demo-millstream-{number}", "NAMESPACE": "here", "RACK": "zone-a", "PATH": "/usr/bin:/bin"}
        said = subprocess.run(["sh", "-c", script], env=pod, capture_output=True, text=True, check=True).stdout
        name = f"demo-millstream-{number}.demo-millstream-brokers.here.svc.cluster.local"
        assert f"advertised.listeners=SASL_SSL://{name}:9092,EXTERNAL://{host}:9094" in said
        assert f"--node-id {number + 1} " in said
        assert "--rack zone-a" in said
        service = found["Service", f"demo-millstream-{number}-external"]
        assert service["spec"]["selector"] == {"statefulset.kubernetes.io/pod-name": f"demo-millstream-{number}"}


def test_the_rules_and_the_dashboard_of_the_chart_are_those_of_the_checkout():
    found = by_kind(render(CHART, EVERYTHING))
    rules = yaml.safe_load((DEPLOY / "prometheus" / "millstream.rules.yml").read_text())
    assert found["PrometheusRule", "demo-millstream"]["spec"] == rules
    dashboard = found["ConfigMap", "demo-millstream-dashboard"]["data"]["millstream.json"]
    assert json.loads(dashboard) == json.loads((DEPLOY / "grafana" / "millstream.json").read_text())
    monitor = found["ServiceMonitor", "demo-millstream"]["spec"]
    scraped = [
        name
        for (kind, name), one in found.items()
        if kind == "Service" and monitor["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
    ]
    assert scraped == ["demo-millstream"], "each broker is scraped once"


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
    monkeypatch.setattr(NODE_PROPERTIES["shards"]._default, "_compute", lambda: 64)
    config = tmp_path / "broker.properties"
    own = "demo-millstream-0.demo-millstream-brokers.here.svc.cluster.local:9192"
    for values in (OPEN, BUCKET):
        documents = by_kind(render(CHART, values))
        config.write_text(documents["ConfigMap", "demo-millstream"]["data"]["broker.properties"])
        settings = load_settings(str(config), [], {"node_id": 1, "seeds": own, "peer_listen": own})
        (broker,) = documents["StatefulSet", "demo-millstream"]["spec"]["template"]["spec"]["containers"]
        assert settings.shards == int(broker["resources"]["requests"]["cpu"])
        assert not settings.shard_pinning, "pods of one node would share the same cores"


@pytest.mark.parametrize("values", [BUCKET, EVERYTHING])
def test_a_larger_cluster_restarts_no_broker(values):
    three, five = (
        by_kind(
            render(
                CHART,
                values
                | {"brokers": count, "externalAccess": {"hosts": [f"{one}.example.org" for one in range(count)]}},
            )
        )
        for count in (3, 5)
    )
    named = "StatefulSet", "demo-millstream"
    assert three[named]["spec"]["template"] == five[named]["spec"]["template"]
    assert (three[named]["spec"]["replicas"], five[named]["spec"]["replicas"]) == (3, 5)


def test_the_volume_of_the_cache_is_larger_than_the_cache(tmp_path):
    for storage_class in ("", "fast"):
        found = by_kind(render(CHART, BUCKET | {"cache": {"storageClass": storage_class}}))
        spec = found["StatefulSet", "demo-millstream"]["spec"]
        volumes = {one["name"]: one for one in spec["template"]["spec"]["volumes"]}
        emptied = [volumes["cache"]["emptyDir"]["sizeLimit"]] if "cache" in volumes else []
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


def check_script(values, tmp_path):
    """The script of the job before an upgrade, with its files below ``tmp_path``, and its environment."""
    job = by_kind(render(CHART, values))["Job", "demo-millstream-upgrade-check"]["spec"]["template"]["spec"]
    (container,) = job["containers"]
    (tmp_path / "tmp").mkdir()
    script = container["args"][0].replace("/tmp/", f"{tmp_path}/tmp/").replace("/etc/", f"{tmp_path}/")
    return script, {one["name"]: one["value"] for one in container["env"]}


@pytest.mark.parametrize(
    ("says", "code", "complaint"),
    [
        ('[{"id": 1}, {"id": 2}, {"id": 3}]', 0, ""),
        ('[{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}, {"id": 5}]', 1, "would stop 4, 5"),
        (None, 0, "not checked"),
    ],
)
def test_fewer_brokers_are_refused_while_the_cluster_has_them(says, code, complaint, tmp_path):
    script, env = check_script(SECURE, tmp_path)
    assert env == {"BOOTSTRAP": "demo-millstream.here.svc:9092", "BROKERS": "3"}
    (tmp_path / "millstream-user").mkdir()
    (tmp_path / "millstream-user" / "user").write_text("root:a:b c\n")
    fake = tmp_path / "bin" / "millstream"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\n' + (f"echo '{says}'\n" if says else "exit 1\n"))
    fake.chmod(0o755)
    path = f"{fake.parent}:/usr/bin:/bin"
    done = subprocess.run(["sh", "-c", script], env=env | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert complaint in done.stdout + done.stderr
    properties = tmp_path / "tmp" / "client.properties"
    assert properties.read_text().splitlines() == [
        "security.protocol=SASL_SSL",
        "sasl.mechanism=SCRAM-SHA-512",
        "sasl.username=root",
        "sasl.password=a:b c",
        f"ssl.ca.location={tmp_path}/millstream-tls/ca.crt",
    ]
    assert properties.stat().st_mode & 0o77 == 0
    assert "cluster brokers --json" in (tmp_path / "given").read_text()


@pytest.mark.process
@pytest.mark.ci
def test_a_real_cluster_answers_the_check(tmp_path):
    script, env = check_script(OPEN | {"brokers": 2}, tmp_path)
    with cluster(3) as made:
        env |= {"BOOTSTRAP": made.bootstrap, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert "would stop 3" in done.stderr
        done = subprocess.run(["sh", "-c", script], env=env | {"BROKERS": "3"}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")

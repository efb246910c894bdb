"""Confluent's REST API, call by call: paths, answers, status and error codes."""

import json

import pytest
from registry_client import Registry, record


@pytest.fixture
def registry():
    return Registry()


USER1 = record("User", ("name", "string"))
USER2 = record("User", ("name", "string"), ("age", "int", 0))
USER3 = record("User", ("name", "string"), ("email", "string"))


def test_a_schema_gets_an_id_and_is_found_by_it(registry):
    answer = registry.register("users-value", USER1)
    assert (answer.status, answer.json["id"], answer.json["version"]) == (200, 1, 1)
    assert json.loads(registry.get("/schemas/ids/1").json["schema"]) == USER1
    assert registry.get("/schemas/ids/1/schema").json == USER1
    assert registry.get("/schemas/ids/1/versions").json == [{"subject": "users-value", "version": 1}]
    assert registry.get("/schemas/ids/1/subjects").json == ["users-value"]
    assert registry.get("/subjects").json == ["users-value"]
    assert registry.get("/subjects/users-value/versions").json == [1]
    latest = registry.get("/subjects/users-value/versions/latest").json
    assert (latest["subject"], latest["version"], latest["id"]) == ("users-value", 1, 1)
    assert "schemaType" not in latest  # Avro goes without saying


def test_the_same_schema_is_not_registered_twice(registry):
    first = registry.register("a", '{"type": "string"}').json
    again = registry.register("a", '"string"').json
    elsewhere = registry.register("b", '{ "type" : "string" }').json
    assert first == again
    assert (elsewhere["id"], elsewhere["version"]) == (first["id"], 1)
    assert registry.register("b", '"bytes"').status in (200, 409)
    assert len(registry.records) <= 3


def test_member_order_does_not_make_another_schema(registry):
    one = '{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}'
    other = '{"name":"A","fields":[{"type":{"type":"int"},"name":"x"}],"type":"record"}'
    assert registry.register("s", one).json["id"] == registry.register("s", other).json["id"]
    assert registry.get("/subjects/s/versions").json == [1]


def test_lookup(registry):
    registry.register("s", USER1)
    found = registry.post("/subjects/s", {"schema": json.dumps(USER1)})
    assert (found.status, found.json["id"], found.json["version"], found.json["subject"]) == (200, 1, 1, "s")
    missing = registry.post("/subjects/s", {"schema": json.dumps(USER2)})
    assert (missing.status, missing.code, missing.json["message"]) == (404, 40403, "Schema not found")
    nobody = registry.post("/subjects/t", {"schema": json.dumps(USER1)})
    assert (nobody.status, nobody.code, nobody.json["message"]) == (404, 40401, "Subject 't' not found.")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/subjects/none/versions", 404, 40401),
        ("GET", "/subjects/none/versions/1", 404, 40401),
        ("GET", "/subjects/s/versions/9", 404, 40402),
        ("GET", "/subjects/s/versions/0", 422, 42202),
        ("GET", "/subjects/s/versions/newest", 422, 42202),
        ("GET", "/subjects/s/versions/99999999999999999999", 422, 42202),
        ("GET", "/schemas/ids/99", 404, 40403),
        ("GET", "/schemas/ids/ninety", 404, 404),
        ("GET", "/schemas/guids/00000000-0000-0000-0000-000000000000", 404, 40403),
        ("DELETE", "/subjects/none", 404, 40401),
        ("DELETE", "/subjects/s/versions/7", 404, 40402),
        ("GET", "/config/s", 404, 40408),
        ("GET", "/mode/s", 404, 40409),
        ("DELETE", "/config/s", 404, 40401),
        ("PATCH", "/subjects", 405, 405),
        ("GET", "/subjects/s/nonsense", 404, 404),
    ],
)
def test_what_is_not_there_is_said_by_code(registry, method, path, status, code):
    registry.register("s", USER1)
    answer = registry.call(method, path)
    assert (answer.status, answer.code) == (status, code)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, 400),
        (b'"text"', 422, 422),
        ({"invalid_field": 1}, 422, 422),
        ({"schema": "{"}, 422, 42201),
        ({"schema": ""}, 422, 42201),
        ({"schema": 7}, 422, 42201),
        ({"schema": '{"type":"enum","name":"e"}'}, 422, 42201),
        ({"schema": '{"type":"record","name":"a","namespace":"x-y","fields":[]}'}, 422, 42201),
        ({"schema": '"string"', "schemaType": "XML"}, 422, 422),
        ({"schema": '"string"', "references": [{"name": 1}]}, 422, 422),
        ({"schema": '"string"', "references": [{"name": "a", "subject": "b", "version": 1}]}, 422, 42201),
        ({"schema": '"string"', "id": 5}, 422, 42205),
        ({"schema": '"string"', "version": 5}, 422, 42202),
        ({"schema": "[" * 5000}, 422, 42201),
        (b"[" * 100_000, 400, 400),
        ({"schema": json.dumps("x" * 1_000_000)}, 422, 42209),
    ],
)
def test_bad_input_is_refused_and_writes_nothing(registry, body, status, code):
    answer = registry.post("/subjects/s/versions", body)
    assert (answer.status, answer.code) == (status, code), answer.json
    assert registry.records == []


def test_an_empty_schema_is_refused_in_confluents_words(registry):
    assert registry.register("s", " ").json == {"error_code": 42201, "message": "Empty schema"}


def test_a_client_of_karapace_learns_that_changes_are_taken(registry):
    assert registry.get("/master_available").json == {"master_available": True}


def test_unknown_members_of_a_body_are_skipped(registry):
    assert registry.register("s", '"string"', color="blue").status == 200


def test_subjects_may_have_any_printable_name(registry):
    for name in ("a b", "ä/ö", "%", "x.y-z_", "\N{GRINNING FACE}"):
        assert registry.register(name, '"string"').status == 200
        assert name in registry.get("/subjects").json
    assert registry.register("a\nb", '"string"').code == 42208


def test_an_incompatible_schema_is_refused_with_409(registry):
    registry.register("s", USER1)
    refused = registry.register("s", USER3)
    assert (refused.status, refused.code) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.json["message"]
    assert registry.register("s", USER2).json["version"] == 2


def test_the_compatibility_check_says_why(registry):
    registry.register("s", USER1)
    for path in ("/compatibility/subjects/s/versions/latest", "/compatibility/subjects/s/versions"):
        good = registry.post(path, {"schema": json.dumps(USER2)})
        assert good.json == {"is_compatible": True}
        assert registry.post(f"{path}?verbose=true", {"schema": json.dumps(USER2)}).json["messages"] == []
        bad = registry.post(path, {"schema": json.dumps(USER3)})
        assert bad.json["is_compatible"] is False
        assert "email" in bad.json["messages"][0]
    missing = registry.post("/compatibility/subjects/s/versions/9", {"schema": json.dumps(USER2)})
    assert (missing.status, missing.code) == (404, 40402)
    for path in ("/compatibility/subjects/new/versions", "/compatibility/subjects/new/versions/latest"):
        assert registry.post(path, {"schema": json.dumps(USER2)}).json == {"is_compatible": True}
    nobody = registry.post("/compatibility/subjects/new/versions/1", {"schema": json.dumps(USER2)})
    assert (nobody.status, nobody.code) == (404, 40402)


def test_levels_of_one_subject_and_of_all(registry):
    assert registry.get("/config").json == {"compatibilityLevel": "BACKWARD"}
    assert registry.put("/config", {"compatibility": "full"}).json == {"compatibility": "FULL"}
    assert registry.get("/config").json == {"compatibilityLevel": "FULL"}
    bad = registry.put("/config", {"compatibility": "SOMEWHAT"})
    assert (bad.status, bad.code) == (422, 42203)
    assert registry.get("/config/s?defaultToGlobal=true").json == {"compatibilityLevel": "FULL"}
    assert registry.put("/config/s", {"compatibility": "NONE"}).json == {"compatibility": "NONE"}
    assert registry.get("/config/s").json == {"compatibilityLevel": "NONE"}
    removed = registry.delete("/config/s").json
    assert (removed["compatibilityLevel"], removed["compatibility"]) == ("NONE", "FULL")
    assert registry.get("/config/s").code == 40408


@pytest.mark.parametrize(
    ("level", "accepts_added", "accepts_removed", "checks_all"),
    [
        ("BACKWARD", False, True, False),
        ("BACKWARD_TRANSITIVE", False, True, True),
        ("FORWARD", True, False, False),
        ("FORWARD_TRANSITIVE", True, False, True),
        ("FULL", False, False, False),
        ("FULL_TRANSITIVE", False, False, True),
        ("NONE", True, True, False),
    ],
)
def test_what_each_level_accepts(level, accepts_added, accepts_removed, checks_all):
    """Fields without a default: a reader needs those that it has to be written."""
    base, more = record("A", ("x", "int")), record("A", ("x", "int"), ("y", "int"))
    registry = Registry()
    registry.level("added", level)
    registry.level("removed", level)
    registry.register("added", base)
    registry.register("removed", more)
    assert (registry.register("added", more).status == 200) is accepts_added
    assert (registry.register("removed", base).status == 200) is accepts_removed

    registry.level("all", "NONE")
    registry.register("all", {"type": "record", "name": "A", "fields": [{"name": "z", "type": "string"}]})
    registry.register("all", record("A", ("z", "int", 1)))
    registry.level("all", level)
    third = registry.register("all", record("A", ("z", "int", 2)))
    assert (third.status == 409) is checks_all


def test_a_soft_delete_hides_and_a_permanent_one_erases(registry):
    registry.register("s", USER1)
    registry.register("s", USER2)
    early = registry.delete("/subjects/s/versions/1?permanent=true")
    assert (early.status, early.code) == (404, 40407)
    assert registry.delete("/subjects/s/versions/1").json == 1
    assert registry.delete("/subjects/s/versions/1").code == 40406
    assert registry.get("/subjects/s/versions/1").code == 40402
    assert registry.get("/subjects/s/versions/1?deleted=true").json["version"] == 1
    assert registry.get("/subjects/s/versions").json == [2]
    assert registry.get("/subjects/s/versions?deleted=true").json == [1, 2]
    assert registry.get("/subjects/s/versions?deletedOnly=true").json == [1]
    assert registry.get("/schemas/ids/1").status == 200  # records that carry the id can still be read
    assert registry.delete("/subjects/s/versions/1?permanent=true").json == 1
    assert registry.get("/schemas/ids/1").code == 40403
    assert registry.delete("/subjects/s/versions/1?permanent=true").code == 40402


def test_deleting_a_subject(registry):
    registry.register("s", USER1)
    registry.register("s", USER2)
    registry.level("s", "NONE")
    assert registry.delete("/subjects/s?permanent=true").code == 40405
    assert registry.delete("/subjects/s").json == [1, 2]
    assert registry.get("/config/s").code == 40408  # its configuration goes along
    assert registry.get("/subjects").json == []
    assert registry.get("/subjects?deleted=true").json == ["s"]
    assert registry.get("/subjects?deletedOnly=true").json == ["s"]
    assert registry.delete("/subjects/s").code == 40404
    again = registry.register("s", USER1).json
    assert (again["id"], again["version"]) == (1, 3)  # numbers are not used again
    registry.delete("/subjects/s")
    assert registry.delete("/subjects/s?permanent=true").json == [1, 2, 3]
    assert registry.delete("/subjects/s?permanent=true").code == 40401
    fresh = registry.register("s", USER3).json
    assert fresh["version"] == 1
    assert fresh["id"] == 3  # an id is given once


def test_the_latest_version_can_be_deleted_by_name(registry):
    registry.register("s", USER1)
    registry.register("s", USER2)
    assert registry.delete("/subjects/s/versions/latest").json == 2
    assert registry.get("/subjects/s/versions/latest").json["version"] == 1


def test_a_schema_that_is_referred_to_stays(registry):
    registry.register("address", record("Address", ("street", "string")))
    user = {"type": "record", "name": "User", "fields": [{"name": "home", "type": "Address"}]}
    assert registry.register("user", user).code == 42201
    reference = {"name": "Address", "subject": "address", "version": 1}
    assert registry.register("user", user, references=[reference]).status == 200
    assert registry.get("/subjects/user/versions/1").json["references"] == [reference]
    assert registry.get("/subjects/address/versions/1/referencedby").json == [2]
    assert registry.delete("/subjects/address").code == 42206
    assert registry.delete("/subjects/address/versions/1").code == 42206
    registry.delete("/subjects/user")
    assert registry.delete("/subjects/address").json == [1]


def test_references_to_the_latest_version_become_a_number(registry):
    registry.register("address", record("Address", ("street", "string")))
    user = {"type": "record", "name": "User", "fields": [{"name": "home", "type": "Address"}]}
    registry.register("user", user, references=[{"name": "Address", "subject": "address", "version": -1}])
    assert registry.get("/subjects/user/versions/1").json["references"][0]["version"] == 1


def test_modes(registry):
    assert registry.get("/mode").json == {"mode": "READWRITE"}
    assert registry.put("/mode/s", {"mode": "readonly"}).json == {"mode": "READONLY"}
    assert registry.get("/mode/s").json == {"mode": "READONLY"}
    refused = registry.register("s", USER1)
    assert (refused.status, refused.code) == (422, 42205)
    assert registry.register("t", USER1).status == 200
    assert registry.delete("/mode/s").json == {"mode": "READONLY"}
    assert registry.register("s", USER1).status == 200
    assert registry.put("/mode", {"mode": "NEVER"}).code == 42204


@pytest.mark.parametrize("mode", ["READONLY", "READONLY_OVERRIDE"])
@pytest.mark.parametrize("path", ["/mode", "/mode/s"])
def test_producers_find_their_registered_schemas_in_every_mode(registry, mode, path):
    registry.register("s", USER1)
    registry.put(path, {"mode": mode})
    again = registry.register("s", USER1)
    assert (again.status, again.json["id"], again.json["version"]) == (200, 1, 1)
    assert registry.register("s", USER2).code == 42205
    assert registry.post("/subjects/s", {"schema": json.dumps(USER1)}).json["version"] == 1


def test_import_keeps_ids_and_versions(registry):
    assert registry.put("/mode/s", {"mode": "IMPORT"}).status == 200
    assert registry.register("s", USER1, id=100, version=7).json["id"] == 100
    assert registry.register("s", USER3, id=101, version=9).json["version"] == 9  # compatibility is not checked
    assert registry.register("s", USER2, id=100, version=10).code == 42207
    assert registry.get("/subjects/s/versions").json == [7, 9]
    assert registry.register("s", USER3).json["id"] == 101  # what is there is found
    refused = registry.register("s", USER2)  # an id of our own could be one that is still to be imported
    assert (refused.code, refused.json["message"]) == (42205, "Subject 's' is not in read-write mode")
    registry.put("/mode/s", {"mode": "READWRITE"})
    assert registry.register("s", USER1, id=100).json["version"] == 7
    assert registry.register("s", USER2, id=103).json["message"] == "Subject 's' is not in import mode"
    assert registry.register("t", USER2).json["id"] == 102
    assert registry.put("/mode/s", {"mode": "IMPORT"}).code == 42205
    assert registry.put("/mode/s?force=true", {"mode": "IMPORT"}).status == 200


def test_contexts_number_their_schemas_apart(registry):
    registry.register("s", USER1)
    assert registry.register(":.staging:s", USER2).json["id"] == 1
    assert registry.get("/contexts").json == [".", ".staging"]
    assert json.loads(registry.get("/schemas/ids/1").json["schema"]) == USER1
    assert json.loads(registry.get("/schemas/ids/1?subject=:.staging:s").json["schema"]) == USER2
    assert registry.get("/subjects").json == [":.staging:s", "s"]
    assert registry.get("/subjects?subjectPrefix=:.staging:").json == [":.staging:s"]
    assert registry.get("/subjects/:.:s/versions").json == [1]
    registry.put("/config/:.staging:", {"compatibility": "NONE"})
    assert registry.register(":.staging:s", '"int"').status == 200
    assert registry.register("s", '"int"').status == 409


@pytest.mark.parametrize("context", [".staging", "staging", ":.staging:", "%3A.staging%3A"])
def test_a_path_may_begin_with_a_context(registry, context):
    registry.register("s", USER1)
    base = f"/contexts/{context}"
    body = {"schema": json.dumps(USER2)}
    assert registry.post(f"{base}/subjects/s/versions?normalize=false", body).json["id"] == 1
    assert registry.get(f"{base}/subjects").json == [":.staging:s"]
    assert registry.get(f"{base}/subjects?subjectPrefix=t").json == []
    assert registry.get(f"{base}/subjects/s/versions/latest").json["subject"] == ":.staging:s"
    assert registry.get(f"{base}/subjects/:.staging:s/versions").json == [1]
    assert registry.get(f"{base}/subjects/:.:s/versions/1").json["subject"] == "s"
    assert json.loads(registry.get(f"{base}/schemas/ids/1?fetchMaxId=true").json["schema"]) == USER2
    assert [each["subject"] for each in registry.get(f"{base}/schemas").json] == [":.staging:s"]
    assert registry.get(f"{base}/schemas/types").json == registry.get("/schemas/types").json
    assert registry.post(f"{base}/subjects/s", body).json["version"] == 1
    assert registry.post(f"{base}/compatibility/subjects/s/versions/latest", body).json["is_compatible"]
    assert registry.get(f"{base}/config").json == {"compatibilityLevel": "BACKWARD"}
    assert registry.get(f"{base}/mode").json == {"mode": "READWRITE"}
    assert registry.get(f"{base}/config/s").code == 40408
    assert registry.put(f"{base}/config", {"compatibility": "NONE"}).status == 200
    assert registry.get("/config").json == {"compatibilityLevel": "BACKWARD"}
    assert registry.get(f"{base}/config").json == {"compatibilityLevel": "NONE"}
    assert registry.put(f"{base}/mode/s", {"mode": "READONLY"}).status == 200
    assert registry.get("/mode/:.staging:s").json == {"mode": "READONLY"}
    for wrong in (base, f"{base}/", f"{base}/nothing", f"{base}/subjects//versions"):
        assert registry.get(wrong).status == 404


def test_the_default_context_has_a_name(registry):
    registry.register("s", USER1)
    registry.register(":.staging:s", USER2)
    assert registry.get("/subjects?subjectPrefix=:.:").json == ["s"]
    assert registry.get("/contexts/:.:/subjects").json == ["s"]
    assert registry.get("/contexts/:.:/subjects/s/versions/1").json["subject"] == "s"


def test_pages_and_lists(registry):
    for name in ("a1", "a2", "b1"):
        registry.register(name, USER1)
    registry.register("a1", USER2)
    assert registry.get("/subjects?subjectPrefix=a").json == ["a1", "a2"]
    assert registry.get("/subjects?offset=1&limit=1").json == ["a2"]
    assert registry.get("/subjects?offset=0&limit=-1").json == ["a1", "a2", "b1"]
    listed = registry.get("/schemas?subjectPrefix=a").json
    assert [(each["subject"], each["version"]) for each in listed] == [("a1", 1), ("a1", 2), ("a2", 1)]
    latest = registry.get("/schemas?latestOnly=true").json
    assert [(each["subject"], each["version"]) for each in latest] == [("a1", 2), ("a2", 1), ("b1", 1)]
    assert registry.get("/schemas/types").json == ["JSON", "PROTOBUF", "AVRO"]


def test_a_schema_has_a_name_that_does_not_depend_on_the_registry(registry):
    known = {"confluent-accept-unknown-properties": "true"}
    body = {"schema": json.dumps(USER1)}
    guid = registry.post("/subjects/s/versions", body, headers=known).json["guid"]
    other = Registry()
    other.register("x", USER2)
    assert other.post("/subjects/y/versions", body, headers=known).json["guid"] == guid
    assert json.loads(other.get(f"/schemas/guids/{guid}").json["schema"]) == USER1
    for path in ("/subjects/y/versions/1", "/schemas/ids/2"):
        assert other.get(path, headers=known).json["guid"] == guid
        assert "guid" not in other.get(path).json
    for path in ("/subjects/y", "/subjects/y/versions"):
        assert "guid" not in other.post(path, body).json


def test_metadata_and_rules_travel_with_a_schema(registry):
    metadata, rules = {"properties": {"owner": "ann"}}, {"domainRules": [{"name": "r", "kind": "CONDITION"}]}
    registry.register("s", USER1, metadata=metadata, ruleSet=rules)
    assert registry.register("s", USER1, metadata={"properties": {"owner": "bob"}}).json["version"] == 2
    first = registry.get("/subjects/s/versions/1").json
    assert (first["metadata"], first["ruleSet"]) == (metadata, rules)
    assert registry.get("/subjects/s/metadata?key=owner&value=ann").json["version"] == 1
    assert registry.get("/subjects/s/metadata?key=owner&value=eve").code == 40403


def test_a_version_without_rules_takes_over_those_of_the_latest(registry):
    metadata, rules = {"properties": {"owner": "ann"}}, {"domainRules": [{"name": "encrypt", "kind": "TRANSFORM"}]}
    registry.register("s", USER1, metadata=metadata, ruleSet=rules)
    assert registry.register("s", USER1).json["version"] == 1  # as a producer sends it that knows the text alone
    assert registry.post("/subjects/s", {"schema": json.dumps(USER1)}).json["version"] == 1
    assert registry.register("s", USER2).json["version"] == 2
    second = registry.get("/subjects/s/versions/2").json
    assert (second["metadata"], second["ruleSet"]) == (metadata, rules)
    assert registry.register("s", USER2, metadata={"properties": {"owner": "bob"}}).json["version"] == 3
    third = registry.get("/subjects/s/versions/3").json
    assert (third["metadata"], third["ruleSet"]) == ({"properties": {"owner": "bob"}}, rules)
    assert registry.register("s", USER2, metadata={}, ruleSet={}).json["version"] == 4  # an empty one takes them away
    assert not {"metadata", "ruleSet"} & registry.get("/subjects/s/versions/4").json.keys()
    assert registry.register("s", USER2).json["version"] == 4


def test_versions_of_other_compatibility_groups_are_not_compared(registry):
    registry.put("/config/s", {"compatibilityGroup": "major"})
    registry.register("s", USER1, metadata={"properties": {"major": "1"}})
    assert registry.register("s", USER3, metadata={"properties": {"major": "1"}}).status == 409
    assert registry.register("s", USER3, metadata={"properties": {"major": "2"}}).status == 200


def test_an_alias_leads_to_its_subject(registry):
    registry.register("real", USER1)
    registry.put("/config/nick", {"alias": "real"})
    assert registry.get("/subjects/nick/versions/latest").json["subject"] == "real"


def test_configuration_that_would_have_no_effect_is_refused(registry):
    answer = registry.put("/config/s", {"compatibility": "FULL", "defaultMetadata": {"properties": {}}})
    assert answer.status == 422
    assert registry.records == []


def test_content_types(registry):
    def kind(accept):
        answer = registry.get("/subjects", headers={"accept": accept} if accept else {})
        return answer.status if answer.status != 200 else answer.content_type

    v1 = "application/vnd.schemaregistry.v1+json"
    assert kind(None) == v1
    assert kind("application/json") == "application/json"
    assert kind("application/vnd.schemaregistry.v2+json") == 406
    assert kind("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2") == v1
    weighed = "application/vnd.schemaregistry.v2+json; q=0.1, application/vnd.schemaregistry+json; q=0.9"
    assert kind(weighed) == "application/vnd.schemaregistry+json"
    assert kind("application/*") == v1
    assert kind("text/*") == 406
    assert kind("application/octet-stream") == 406

    def put(kind, body=b'{"compatibility":"NONE"}'):
        return registry.put("/config", body, headers={"content-type": kind}).status

    assert put("text/html") == 415
    assert put("application/octet-stream") == 200
    assert put("application/vnd.schemaregistry.v1+json; charset=utf-8") == 200
    assert put("application/json; charset=utf-16", '{"compatibility":"NONE"}'.encode("utf-16")) == 200
    assert put("application/json; charset=klingon") == 415
